#include "tools/prompt_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {
namespace {

bool Admits(const PromptLimit& limit, const std::string& text) {
  return text.size() <= uint64_t{limit.context} * limit.longest_token;
}

absl::Status TooLong(const PromptLimit& limit) {
  return absl::OutOfRangeError(absl::StrFormat(
      "the prompt has more bytes than %u tokens can stand for, which is the context; "
      "give a larger -c or a shorter prompt",
      limit.context));
}

// Replaces \n, \t, \r, \", \', \\ by what they stand for, as llama.cpp does with -p.
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kCodes = "ntr\"'\\", kBytes = "\n\t\r\"'\\";
    const size_t code =
        text[i] == '\\' && i + 1 < text.size() ? kCodes.find(text[i + 1]) : std::string_view::npos;
    if (code == std::string_view::npos) {
      out += text[i];
    } else {
      out += kBytes[code];
      ++i;
    }
  }
  return out;
}

// Reads a file, pipe or terminal to its end.
absl::StatusOr<std::string> ReadToEnd(int fd, const std::string& name, const PromptLimit& limit) {
  std::string text;
  std::vector<char> piece(64 * 1024);
  while (true) {
    const ssize_t n = read(fd, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, name + ": the prompt cannot be read");
    if (n == 0) return text;
    text.append(piece.data(), static_cast<size_t>(n));
    if (!Admits(limit, text)) return TooLong(limit);
  }
}

}  // namespace

absl::StatusOr<std::string> ReadPrompt(const PromptSource& source, const PromptLimit& limit) {
  if (source.file.empty()) {
    std::string text = source.escapes ? Unescape(source.text) : source.text;
    if (!Admits(limit, text)) return TooLong(limit);
    return text;
  }
  if (source.file == "-") return ReadToEnd(STDIN_FILENO, "stdin", limit);
  const int fd = open(source.file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, source.file + ": the prompt cannot be read");
  auto text = ReadToEnd(fd, source.file, limit);
  close(fd);
  return text;
}

}  // namespace sluice
