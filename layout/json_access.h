// Type-checked access to JSON documents that come from outside. Only sources include this.
#ifndef SLUICE_LAYOUT_JSON_ACCESS_H_
#define SLUICE_LAYOUT_JSON_ACCESS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// InvalidArgument naming `path` if `text` is not one JSON object, or one that would take far more
// memory than any known vocabulary.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& path);

// The member, or null if `value` is no object, has none of that name or has null there.
const nlohmann::json* FindMember(const nlohmann::json& value, const char* key);

// The member if it is a string, else "".
std::string_view StringMember(const nlohmann::json& value, const char* key);

// Each leaves `out` as it is if there is no such member, and gives InvalidArgument naming `path`
// and the key if it has another type or does not fit.
absl::Status ReadMember(const nlohmann::json& value, const char* key, const std::string& path,
                        bool& out);
absl::Status ReadMember(const nlohmann::json& value, const char* key, const std::string& path,
                        std::string& out);

// The status of a value that is not what the reader needs.
absl::Status WrongJson(const std::string& path, std::string_view what, const nlohmann::json& found,
                       std::string_view wanted);

// A token id, checked against kMaxTokens.
absl::StatusOr<int32_t> JsonTokenId(const nlohmann::json& value, const std::string& path,
                                    std::string_view what);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_JSON_ACCESS_H_
