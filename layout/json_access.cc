#include "layout/json_access.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "layout/tokenizer_data.h"

namespace sluice {

using nlohmann::json;

namespace {

constexpr int kMaxDepth = 64;
// What a document may take in memory when it is parsed. The largest known, a vocabulary of 260k
// tokens with half a million merges as pairs, takes 150 MiB.
constexpr size_t kMaxParsedBytes = size_t{192} << 20;

// What parts of a document take, heap blocks and growth of arrays included.
constexpr size_t kValueBytes = 24;        // an element
constexpr size_t kContainerBytes = 64;    // the vector or map of an array or object
constexpr size_t kMemberBytes = 64;       // the node of a member, beside its key and value
constexpr size_t kStringBytes = 48;       // the string object
constexpr size_t kShortStringBytes = 15;  // what fits into it

// Whether the parser would stay within these limits; what is said of text that is not JSON does not
// matter. A hostile file could otherwise make it build far more than the file's own size.
bool IsWithinLimits(std::string_view text) {
  int depth = 0;
  size_t bytes = 0;
  size_t string_begin = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && depth <= kMaxDepth && bytes <= kMaxParsedBytes; ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_string = false;
      const size_t length = i - string_begin;
      bytes += kStringBytes + (length > kShortStringBytes ? length : 0);
    } else if (c == '"') {
      in_string = true;
      string_begin = i + 1;
    } else if (c == '[' || c == '{') {
      ++depth;
      bytes += kContainerBytes;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',') {
      bytes += kValueBytes;
    } else if (c == ':') {
      bytes += kMemberBytes;
    }
  }
  return depth <= kMaxDepth && bytes <= kMaxParsedBytes;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(std::string_view text, const std::string& path) {
  if (!IsWithinLimits(text)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: nests more than %d levels or would take more than %d MiB", path,
                        kMaxDepth, kMaxParsedBytes >> 20));
  }
  json parsed = json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: is not valid JSON", path));
  }
  if (!parsed.is_object()) return WrongJson(path, "the document", parsed, "an object");
  return parsed;
}

const json* FindMember(const json& value, const char* key) {
  if (!value.is_object()) return nullptr;
  const auto it = value.find(key);
  return it == value.end() || it->is_null() ? nullptr : &*it;
}

std::string_view StringMember(const json& value, const char* key) {
  const json* member = FindMember(value, key);
  const auto* text = member != nullptr ? member->get_ptr<const std::string*>() : nullptr;
  return text != nullptr ? std::string_view(*text) : std::string_view();
}

absl::Status ReadMember(const json& value, const char* key, const std::string& path, bool& out) {
  const json* member = FindMember(value, key);
  if (member == nullptr) return absl::OkStatus();
  if (!member->is_boolean()) return WrongJson(path, key, *member, "true or false");
  out = member->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadMember(const json& value, const char* key, const std::string& path,
                        std::string& out) {
  const json* member = FindMember(value, key);
  if (member == nullptr) return absl::OkStatus();
  const auto* text = member->get_ptr<const std::string*>();
  if (text == nullptr) return WrongJson(path, key, *member, "a string");
  out = *text;
  return absl::OkStatus();
}

absl::Status WrongJson(const std::string& path, std::string_view what, const json& found,
                       std::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s is of type %s; expected %s", path, what, found.type_name(), wanted));
}

absl::StatusOr<int32_t> JsonTokenId(const json& value, const std::string& path,
                                    std::string_view what) {
  if (!value.is_number_integer()) return WrongJson(path, what, value, "a token id");
  // Numbers that are not negative are stored unsigned.
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s is %s; token ids are 0..%d", path,
                                                      what, value.dump(), kMaxTokens - 1));
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

}  // namespace sluice
