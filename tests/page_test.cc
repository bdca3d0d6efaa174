// The page of `sluice iobench --html` against the JSON document of the same run: as it is in the
// file, and as Chromium renders it where that is installed.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli_run.h"
#include "tests/import_test_files.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::optional<std::string> FindChromium() {
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path != nullptr ? path : "", ':')) {
    const std::string file = absl::StrCat(folder, "/chromium");
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return std::nullopt;
}

// What lies between `begin` and `end`, from *at on, which is moved behind it. Empty and *at npos if
// there is no more.
std::string Between(const std::string& text, const std::string& begin, const std::string& end,
                    size_t* at) {
  const size_t from = *at < text.size() ? text.find(begin, *at) : std::string::npos;
  const size_t to = from == std::string::npos ? from : text.find(end, from + begin.size());
  *at = to;
  if (to == std::string::npos) return "";
  *at = to + end.size();
  return text.substr(from + begin.size(), to - from - begin.size());
}

std::string Only(const std::string& text, const std::string& begin, const std::string& end) {
  size_t at = 0;
  return Between(text, begin, end, &at);
}

std::string Unescape(const std::string& html) {
  return absl::StrReplaceAll(
      html, {{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}, {"&quot;", "\""}, {"&#39;", "'"}});
}

// The texts of the cells of a row, which has th and td elements.
std::vector<std::string> CellsOf(const std::string& row) {
  std::vector<std::string> cells;
  for (size_t at = 0;;) {
    const size_t th = row.find("<th", at), td = row.find("<td", at);
    at = std::min(th, td);
    if (at == std::string::npos) return cells;
    const std::string close = th < td ? "</th>" : "</td>";
    at = row.find('>', at);
    cells.push_back(Unescape(Between(row, ">", close, &at)));
  }
}

// Of a table, by the titles of its columns.
std::vector<std::map<std::string, std::string>> RowsOf(const std::string& table) {
  std::vector<std::map<std::string, std::string>> rows;
  std::vector<std::string> heads;
  for (size_t at = 0;;) {
    const std::string row = Between(table, "<tr", "</tr>", &at);
    if (at == std::string::npos) return rows;
    const std::vector<std::string> cells = CellsOf(row);
    if (heads.empty()) {
      heads = cells;
      continue;
    }
    EXPECT_EQ(cells.size(), heads.size()) << row;
    auto& by_head = rows.emplace_back();
    for (size_t i = 0; i < std::min(cells.size(), heads.size()); ++i) by_head[heads[i]] = cells[i];
  }
}

struct Point {
  size_t cell = 0;
  double x = 0, y = 0;
};

// The charts of an axis, with the points of each.
std::vector<std::vector<Point>> ChartsOf(const std::string& html, const std::string& axis) {
  std::vector<std::vector<Point>> charts;
  for (size_t at = 0;;) {
    const std::string figure =
        Between(html, absl::StrCat("<figure data-chart=\"", axis, "\""), "</figure>", &at);
    if (at == std::string::npos) return charts;
    charts.emplace_back();
    for (size_t in = 0;;) {
      const std::string circle = Between(figure, "<circle", ">", &in);
      if (in == std::string::npos) break;
      Point p;
      EXPECT_TRUE(absl::SimpleAtoi(Only(circle, "data-cell=\"", "\""), &p.cell)) << circle;
      EXPECT_TRUE(absl::SimpleAtod(Only(circle, "cx=\"", "\""), &p.x)) << circle;
      EXPECT_TRUE(absl::SimpleAtod(Only(circle, "cy=\"", "\""), &p.y)) << circle;
      charts.back().push_back(p);
    }
  }
}

std::string Size(uint64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, "M");
  return absl::StrCat(bytes >> 10, "k");
}

std::string Fixed(const json& value, int decimals) {
  return value.is_null() ? "\u2013" : absl::StrFormat("%.*f", decimals, value.get<double>());
}

void ExpectRowShows(std::map<std::string, std::string>& row, const json& cell) {
  const char* const pattern = cell["rw"] == "read" ? "sequential " : "random ";
  EXPECT_EQ(row["reads"], pattern + Size(cell["bs"]));
  EXPECT_EQ(row["depth"], absl::StrCat(cell["iodepth"].get<int>()));
  EXPECT_EQ(row["range"], Size(cell["size"]));
  EXPECT_EQ(row["threads"], absl::StrCat(cell["numjobs"].get<int>()));
  EXPECT_EQ(row["core"], cell["cpu"].is_null() ? "any" : absl::StrCat(cell["cpu"].get<int>()));
  EXPECT_EQ(row["direct"], cell["effective"]["direct"].get<bool>() ? "yes" : "no");
  EXPECT_EQ(row["engine"], cell["effective"]["engine"].get<std::string>());
  const json& rate = cell["mb_per_s"];
  EXPECT_EQ(row["MB/s"], Fixed(rate["median"], 1));
  EXPECT_EQ(row["p5\u2013p95"], Fixed(rate["p5"], 1) + "\u2013" + Fixed(rate["p95"], 1));
  EXPECT_EQ(row["IOPS"], Fixed(cell["iops"]["median"], 0));
  for (const char* q : {"p50", "p95", "p99", "max"}) {
    EXPECT_EQ(row[absl::StrCat(q, " \u00b5s")], Fixed(cell["latency_us"][q], 1)) << q;
  }
  EXPECT_EQ(row["CPU \u00b5s/read"], Fixed(cell["cpu_us_per_operation"], 2));
  std::vector<std::string> remarks = cell["remarks"];
  for (const std::string& remark : remarks) EXPECT_THAT(row["remarks"], HasSubstr(remark));
  EXPECT_EQ(row["remarks"].empty(), remarks.empty());
}

constexpr const char* kAxes[] = {"bs", "size", "iodepth", "cpu", "numjobs"};
constexpr const char* kCharts[] = {"bs", "size", "iodepth", "cpus", "numjobs"};

// The cells that lie on a curve over an axis: those that have a figure, and differ from another one
// that has in nothing but the axis.
std::multiset<size_t> CellsOnCurves(const json& cells, const std::string& axis) {
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i]["mb_per_s"]["median"].is_null()) continue;
    json place = {cells[i]["rw"], cells[i]["ioengine"], cells[i]["direct"],
                  cells[i]["effective"]["direct"]};
    for (const char* other : kAxes) place.push_back(other == axis ? json() : cells[i][other]);
    groups[place.dump()].push_back(i);
  }
  std::multiset<size_t> on_curves;
  for (const auto& [place, members] : groups) {
    if (members.size() > 1) on_curves.insert(members.begin(), members.end());
  }
  return on_curves;
}

// Points of larger values are not lower, and of larger places are further to the right.
void ExpectInOrder(const std::vector<Point>& points, const json& cells, const std::string& axis) {
  constexpr double kRounding = 0.1;
  for (const Point& a : points) {
    for (const Point& b : points) {
      const json &cell_a = cells[a.cell], &cell_b = cells[b.cell];
      if (cell_a["mb_per_s"]["median"] > cell_b["mb_per_s"]["median"]) {
        EXPECT_LE(a.y, b.y + kRounding) << axis << " " << a.cell << " " << b.cell;
      }
      if (axis != "cpu" && cell_a[axis] < cell_b[axis]) {
        EXPECT_LT(a.x, b.x) << axis;
      }
    }
  }
}

void ExpectPageShows(const std::string& html, const json& document) {
  EXPECT_EQ(json::parse(Only(html, "id=\"data\">", "</script>"), nullptr, false), document);
  auto rows = RowsOf(Only(html, "<table id=\"cells\">", "</table>"));
  const json& cells = document["cells"];
  ASSERT_EQ(rows.size(), cells.size());
  for (size_t i = 0; i < rows.size(); ++i) ExpectRowShows(rows[i], cells[i]);
  for (size_t a = 0; a < std::size(kAxes); ++a) {
    std::multiset<size_t> shown;
    for (const std::vector<Point>& points : ChartsOf(html, kCharts[a])) {
      for (const Point& p : points) shown.insert(p.cell);
      ExpectInOrder(points, cells, kAxes[a]);
    }
    EXPECT_EQ(shown, CellsOnCurves(cells, kAxes[a])) << kAxes[a];
  }
  const auto effects = RowsOf(Only(html, "<table id=\"effects\">", "</table>"));
  EXPECT_EQ(effects.size(), document["effects"].size());
}

// One run for all tests, over every axis that has curves but cores.
class PageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    // A name that would break out of any markup that did not escape it.
    const std::string file = dir_->File("<!--<script>&amp;'\"");
    std::ofstream(file, std::ios::binary) << std::string(2 << 20, 'x');
    page_ = dir_->File("page.html");
    const RunResult run = RunSluice(
        {"iobench", file,        "--bs",       "4k,16k,512k", "--size", "1M,2M",       "--iodepth",
         "1,4",     "--numjobs", "1,2",        "--runtime",   "0.02",   "--ramp_time", "0.01",
         "--gate",  "0",         "--ioengine", "pread",       "--json", "--html",      page_});
    ASSERT_EQ(run.exit_code, kOk) << run.err;
    document_ = new json(json::parse(run.out, nullptr, false));
    ASSERT_TRUE(document_->is_object()) << run.out;
    html_ = ReadFile(page_);
  }
  static void TearDownTestSuite() {
    delete dir_;
    delete document_;
    dir_ = nullptr;
    document_ = nullptr;
  }

  // The document that Chromium makes of the file, as text; nothing where it does not run.
  static std::optional<std::string> Render(const std::string& path) {
    const auto chromium = FindChromium();
    if (!chromium) return std::nullopt;
    const RunResult run = RunProgram(
        *chromium, {"--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                    "--user-data-dir=" + dir_->File("chromium"), "--dump-dom", "file://" + path});
    if (run.exit_code != 0 || run.out.empty()) return std::nullopt;
    return run.out;
  }
  // Whether it renders anything here: it may be forbidden what it needs.
  static bool CanRender() {
    const std::string path = dir_->File("empty.html");
    std::ofstream(path) << "<!doctype html><p>rendered</p>";
    const auto rendered = Render(path);
    return rendered && rendered->find("rendered") != std::string::npos;
  }

  static inline TempDir* dir_ = nullptr;
  static inline json* document_ = nullptr;
  static inline std::string page_, html_;
};

TEST_F(PageTest, TheFileShowsTheFiguresOfTheDocument) {
  // All of 4k and 16k; of 512k those of which the range holds enough.
  ASSERT_GE((*document_)["cells"].size(), 2u * 2u * 2u * 2u * 2u);
  ExpectPageShows(html_, *document_);
}

TEST_F(PageTest, NeedsNothingBesideItAndRunsNoScript) {
  for (const char* outside : {"http:", "https:", "src=", "<link", "@import", "url("}) {
    EXPECT_THAT(html_, Not(HasSubstr(outside)));
  }
  size_t at = 0, n_scripts = 0;
  while (at != std::string::npos) {
    n_scripts += !Between(html_, "<script", "</script>", &at).empty();
  }
  EXPECT_EQ(n_scripts, 1u) << "the data, which is no program";
  EXPECT_THAT(html_, HasSubstr("<script type=\"application/json\""));
}

TEST_F(PageTest, RenderedItShowsTheFiguresOfTheDocument) {
  if (!FindChromium()) GTEST_SKIP() << "chromium is not in PATH";
  if (!CanRender()) GTEST_SKIP() << "chromium does not run here";
  const auto rendered = Render(page_);
  ASSERT_TRUE(rendered);
  ExpectPageShows(*rendered, *document_);
}

// Looks at the page in a frame as wide as a small phone, and writes what it finds into its own
// document: how wide the content is, the smallest letters in pixels of the screen, the lowest
// contrast (WCAG 2) of a text and of a line with the background.
constexpr char kLooker[] = R"html(<!doctype html><body><pre id="found"></pre><script>
function luminance(text) {
  const parts = text.match(/[0-9.]+/g).map(v => v / 255);
  const linear = parts.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  const style = e => view.getComputedStyle(e);
  const ground = luminance(style(page.body).backgroundColor);
  const contrast = colour => {
    const l = luminance(colour);
    return (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05);
  };
  let letters = 1e9, text = 1e9, line = 1e9;
  for (const e of page.querySelectorAll('body *:not(script):not(title)')) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
    const svg = e.closest('svg'), scale = svg ? svg.getScreenCTM().a : 1;
    letters = Math.min(letters, parseFloat(style(e).fontSize) * scale);
    text = Math.min(text, contrast(svg ? style(e).fill : style(e).color));
  }
  for (const e of page.querySelectorAll('polyline')) line = Math.min(line, contrast(style(e).stroke));
  document.getElementById('found').textContent = JSON.stringify(
      {width: page.documentElement.scrollWidth, letters, text, line});
}
</script><iframe style="width:360px;height:800px;border:0" onload="look(this)" src="PAGE"></iframe>)html";

TEST_F(PageTest, APhoneShowsItLegiblyWithoutScrollingSideways) {
  if (!FindChromium()) GTEST_SKIP() << "chromium is not in PATH";
  if (!CanRender()) GTEST_SKIP() << "chromium does not run here";
  // What is asked for cannot be forced from outside, so the dark page is one that is always dark.
  const std::map<std::string, std::string> pages = {
      {"light", absl::StrReplaceAll(html_, {{"(prefers-color-scheme:dark)", " print"}})},
      {"dark", absl::StrReplaceAll(html_, {{"(prefers-color-scheme:dark)", " all"}})}};
  for (const auto& [name, html] : pages) {
    const std::string looker = dir_->File("look.html");
    std::ofstream(dir_->File(name + ".html")) << html;
    std::ofstream(looker) << absl::StrReplaceAll(kLooker, {{"PAGE", name + ".html"}});
    const auto rendered = Render(looker);
    ASSERT_TRUE(rendered);
    const json found = json::parse(Only(*rendered, "id=\"found\">", "</pre>"), nullptr, false);
    ASSERT_TRUE(found.is_object()) << *rendered;
    EXPECT_LE(found["width"], 360) << name;
    EXPECT_GE(found["letters"], 11) << name;
    EXPECT_GE(found["text"], 4.5) << name;
    EXPECT_GE(found["line"], 3) << name;
  }
}

}  // namespace
}  // namespace sluice
