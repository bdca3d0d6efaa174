// Reads members of a JSON object and keeps the first thing that is wrong, so that a reader can be
// written straight down. For .cc files only: it includes the JSON library.
#ifndef SLUICE_IO_JSON_FIELDS_H_
#define SLUICE_IO_JSON_FIELDS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {

class JsonFields {
 public:
  // Borrows `object`. `where` begins each message.
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) Fail("is not an object");
  }

  bool Has(const char* key) const {
    return object_.is_object() && object_.contains(key) && !object_.at(key).is_null();
  }
  // A number in min..max; `min` if it is not one.
  double Number(const char* key, double min, double max) {
    const nlohmann::json* v = Find(key);
    if (v == nullptr) return min;
    if (!v->is_number()) {
      Fail(absl::StrCat("\"", key, "\" is not a number"));
      return min;
    }
    const double value = v->get<double>();
    if (value >= min && value <= max) return value;
    Fail(absl::StrFormat("\"%s\" is %g; it must be in %g..%g", key, value, min, max));
    return min;
  }
  std::string Text(const char* key) {
    const nlohmann::json* v = Find(key);
    if (v != nullptr && v->is_string()) return v->get<std::string>();
    if (v != nullptr) Fail(absl::StrCat("\"", key, "\" is not a text"));
    return "";
  }
  void Fail(const std::string& what) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(where_, ": ", what)));
  }
  const absl::Status& status() const { return status_; }

  // Calls read(fields) for each element of the array `key`, if it is there.
  template <typename F>
  void Each(const char* key, F read) {
    if (!Has(key)) return;
    const nlohmann::json& array = object_.at(key);
    if (!array.is_array()) return Fail(absl::StrCat("\"", key, "\" is not an array"));
    for (size_t i = 0; i < array.size() && status_.ok(); ++i) {
      JsonFields element(array[i], absl::StrCat(where_, ": ", key, "[", i, "]"));
      read(element);
      status_.Update(element.status());
    }
  }

 private:
  const nlohmann::json* Find(const char* key) {
    if (Has(key)) return &object_.at(key);
    Fail(absl::StrCat("\"", key, "\" is missing"));
    return nullptr;
  }

  const nlohmann::json& object_;
  const std::string where_;
  absl::Status status_;
};

}  // namespace sluice

#endif  // SLUICE_IO_JSON_FIELDS_H_
