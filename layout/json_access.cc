#include "layout/json_access.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "layout/tokenizer_data.h"

namespace sluice {

using nlohmann::json;

namespace {

// The largest vocabularies have some two million values, a few levels deep.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxValues = 8'000'000;

// Whether the parser would stay within these limits; what is said of text that is not JSON does not
// matter. A hostile file could otherwise make it build far more than the file's own size.
bool IsWithinLimits(std::string_view text) {
  int depth = 0;
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && depth <= kMaxDepth && values <= kMaxValues; ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else {
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
      values += c == '[' || c == '{' || c == ',';
    }
  }
  return depth <= kMaxDepth && values <= kMaxValues;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(std::string_view text, const std::string& path) {
  if (!IsWithinLimits(text)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: nests more than %d levels or has more than %d values", path, kMaxDepth, kMaxValues));
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
