#include "tools/span_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Two processes, so that viewers show them one above the other.
constexpr int kCompute = 1, kStorage = 2;

// Builds the list of events; times count from the start of the token, in microseconds.
class Events {
 public:
  Events(uint64_t begin_ns, uint64_t end_ns) : begin_ns_(begin_ns), end_ns_(end_ns) {}

  void Name(int process, size_t thread, const char* what, const std::string& name) {
    list_.push_back({{"ph", "M"},
                     {"pid", process},
                     {"tid", thread},
                     {"name", what},
                     {"args", {{"name", name}}}});
  }
  void Span(size_t thread, const sluice::Span& s, const char* id_name) {
    list_.push_back({{"ph", "X"},
                     {"pid", kCompute},
                     {"tid", thread},
                     {"name", s.name},
                     {"ts", Us(s.begin_ns)},
                     {"dur", static_cast<double>(s.end_ns - s.begin_ns) / 1e3},
                     {"args", {{id_name, s.id}}}});
  }
  // Reads overlap: each one is a track of its own.
  void Read(size_t number, const sluice::Span& s) {
    for (const bool begins : {true, false}) {
      Json event = {{"ph", begins ? "b" : "e"},
                    {"cat", "read"},
                    {"id", number},
                    {"pid", kStorage},
                    {"tid", 0},
                    {"name", "read"},
                    {"ts", Us(begins ? s.begin_ns : s.end_ns)}};
      if (begins) event["args"] = {{"offset", s.id}, {"bytes", s.bytes}};
      list_.push_back(std::move(event));
    }
  }
  void InFlight(uint64_t at_ns, int64_t reads) {
    list_.push_back({{"ph", "C"},
                     {"pid", kStorage},
                     {"name", "reads in flight"},
                     {"ts", Us(at_ns)},
                     {"args", {{"reads", reads}}}});
  }
  bool Overlaps(const sluice::Span& s) const {
    return s.end_ns >= begin_ns_ && s.begin_ns <= end_ns_;
  }
  Json Take() { return std::move(list_); }

 private:
  // What began before the token has a negative time.
  double Us(uint64_t ns) const {
    return (static_cast<double>(ns) - static_cast<double>(begin_ns_)) / 1e3;
  }

  const uint64_t begin_ns_, end_ns_;
  Json list_ = Json::array();
};

// How many are in flight from each time on at which that changes.
void CountInFlight(const std::vector<Span>& reads, Events* events) {
  std::vector<std::pair<uint64_t, int64_t>> changes;
  for (const Span& s : reads) {
    changes.emplace_back(s.begin_ns, 1);
    changes.emplace_back(s.end_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t n = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    n += changes[i].second;
    if (i + 1 == changes.size() || changes[i + 1].first != changes[i].first) {
      events->InFlight(changes[i].first, n);
    }
  }
}

bool IsNamed(const Span& s, std::string_view name) { return s.name == name; }

}  // namespace

absl::StatusOr<TokenTrace> TraceOfLastToken(const SpanLog& log, const std::string& model,
                                            const std::vector<std::string>& about) {
  const std::vector<Span> decode = log.Spans(0);
  // A share of the token that lies outside of all stages has its name too, and is shorter.
  const auto token = std::find_if(decode.rbegin(), decode.rend(),
                                  [](const Span& s) { return IsNamed(s, "token"); });
  if (token == decode.rend()) {
    return absl::NotFoundError("no token was decoded; there is nothing to trace");
  }
  TokenTrace trace;
  trace.position = token->id;
  trace.token_ns = token->end_ns - token->begin_ns;
  trace.is_complete = log.complete_since_ns() < token->begin_ns;
  Events events(token->begin_ns, token->end_ns);
  events.Name(kCompute, 0, "process_name", "compute");
  events.Name(kStorage, 0, "process_name", "storage");
  const size_t n_threads = log.n_lanes() - 1;
  for (size_t lane = 0; lane < n_threads; ++lane) {
    events.Name(kCompute, lane, "thread_name",
                lane == 0 ? "decode thread" : absl::StrCat("worker ", lane));
    for (const Span& s : log.Spans(lane)) {
      if (s.begin_ns < token->begin_ns || s.end_ns > token->end_ns) continue;
      events.Span(lane, s, "id");
      if (IsNamed(s, "stall")) trace.stall_ns += s.end_ns - s.begin_ns;
    }
  }
  std::vector<Span> reads = log.Spans(n_threads);
  std::erase_if(reads, [&](const Span& s) { return !events.Overlaps(s); });
  for (size_t i = 0; i < reads.size(); ++i) events.Read(i, reads[i]);
  CountInFlight(reads, &events);
  trace.reads = reads.size();
  const Json document = {{"traceEvents", events.Take()},
                         {"displayTimeUnit", "ms"},
                         {"otherData",
                          {{"program", "sluice " SLUICE_VERSION},
                           {"model", model},
                           {"position", trace.position},
                           {"complete", trace.is_complete},
                           {"about", about}}}};
  trace.json = document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return trace;
}

}  // namespace sluice
