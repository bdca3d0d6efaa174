// The picture of a token that `sluice generate --trace` writes: a file of the trace event format,
// which ui.perfetto.dev and chrome://tracing show.
#ifndef SLUICE_TOOLS_SPAN_TRACE_H_
#define SLUICE_TOOLS_SPAN_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "io/span_log.h"

namespace sluice {

struct TokenTrace {
  std::string json;
  uint64_t position = 0;  // of the token in the context
  uint64_t token_ns = 0, stall_ns = 0;
  uint64_t reads = 0;        // that came back while it was computed
  bool is_complete = false;  // no part of it was overwritten
};

// Of the last token of `log` that went through the layers alone, as a decoder logged it: lanes are
// compute threads, the last lane is the reads. `about` are lines for whoever looks at the file.
// NotFound if there is no such token.
absl::StatusOr<TokenTrace> TraceOfLastToken(const SpanLog& log, const std::string& model,
                                            const std::vector<std::string>& about);

}  // namespace sluice

#endif  // SLUICE_TOOLS_SPAN_TRACE_H_
