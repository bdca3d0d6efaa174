#include "tools/html_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/svg_chart.h"

namespace sluice {
namespace {

constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5a6270;--line:#d5d9e0;--warn:#b3261e;
--c0:#2463c5;--c1:#c2571a;--c2:#2a8a4a;--c3:#8a3fb0;--c4:#8c6d00;--c5:#007c8f;--c6:#b03060;--c7:#5f6773}
@media(prefers-color-scheme:dark){:root{
--bg:#14171c;--fg:#e6e8ec;--dim:#a3a9b5;--line:#363d48;--warn:#ffb4ab;
--c0:#7aa7ff;--c1:#ff9e64;--c2:#6fd08c;--c3:#d199f0;--c4:#e3c04d;--c5:#4fd0e0;--c6:#ff8fb0;--c7:#aab2bf}}
*{box-sizing:border-box}
body{margin:0 auto;padding:12px;max-width:1100px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.3rem;line-height:1.3;margin:0}h2{font-size:1.1rem;margin:24px 0 8px}p{margin:8px 0}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:24px 16px}
figure{margin:0;min-width:0}figcaption{font-weight:600;line-height:1.35}
small,.dim{color:var(--dim);font-weight:400;font-size:.85rem}
svg{display:block;width:100%;height:auto}.axis{fill:var(--dim);font-size:13px}.grid{stroke:var(--line)}
polyline{fill:none;stroke:currentColor;stroke-width:2}svg g line{stroke:currentColor}
circle{fill:currentColor;stroke:currentColor;stroke-width:1.5}circle.doubt{fill:var(--bg)}
.legend{margin:4px 0 0;font-size:.85rem;display:flex;flex-wrap:wrap;gap:2px 14px}
.legend i{display:inline-block;width:18px;border-top:3px solid;margin-right:6px;vertical-align:middle}
.s0{color:var(--c0)}.s1{color:var(--c1)}.s2{color:var(--c2)}.s3{color:var(--c3)}
.s4{color:var(--c4)}.s5{color:var(--c5)}.s6{color:var(--c6)}.s7{color:var(--c7)}.warn,tr.doubt{color:var(--warn)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem}
td,th{padding:3px 8px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;font-weight:400}
thead th{font-weight:600;vertical-align:bottom}
tr>th:first-child{position:sticky;left:0;background:var(--bg);text-align:left;padding-left:0;
border-right:1px solid var(--line)}
td.text{text-align:left}
)";

}  // namespace

std::string BeginPage(std::string_view title) {
  return absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>",
      EscapeHtml(title), "</title><style>", kStyle, "</style></head><body>");
}

std::string EndPage(std::string_view json) {
  // A script element may hold neither "</script" nor "<!--"; JSON has "<" only inside of strings.
  return absl::StrCat("<script type=\"application/json\" id=\"data\">",
                      absl::StrReplaceAll(std::string(json), {{"<", "\\u003c"}}),
                      "</script></body></html>\n");
}

}  // namespace sluice
