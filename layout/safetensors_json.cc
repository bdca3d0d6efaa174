#include "layout/safetensors_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/safetensors.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxDims = 8;

// What both documents share: an object of known depth whose values are told apart by their place.
// The first error stops the parser.
class StrictSax : public json::json_sax_t {
 public:
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a bool"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool string(string_t&) override { return Unexpected("a string"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_array(size_t) override { return Unexpected("an array"); }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrFormat("the JSON is not valid at byte %d", position));
  }

 protected:
  bool Fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }
  bool Unexpected(std::string_view found) {
    return Fail(absl::StrFormat("the JSON has %s %s", found, Place()));
  }
  virtual std::string Place() const = 0;

 private:
  std::string error_;
};

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
class HeaderSax : public StrictSax {
 public:
  std::vector<SafetensorsEntry> TakeEntries() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (depth_ > 1 || in_array_) return Unexpected("an object");
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ != 1 || in_metadata_) return true;
    if (seen_ != (kDtype | kShape | kOffsets)) {
      return Fail(absl::StrCat("dtype, shape or data_offsets is missing ", Place()));
    }
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) return TensorKey(name);
    return in_metadata_ || FieldKey(name);
  }

  bool string(string_t& value) override {
    if (in_metadata_ && depth_ == 2) return true;
    if (depth_ != 2 || field_ != kDtype) return Unexpected("a string");
    entries_.back().dtype = value.substr(0, 32);
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == kDtype) {
      return Unexpected("an array");
    }
    in_array_ = true;
    n_elements_ = 0;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (field_ == kOffsets && n_elements_ != 2) {
      return Fail(absl::StrCat("data_offsets must hold two numbers ", Place()));
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Unexpected("a number");
    SafetensorsEntry& entry = entries_.back();
    ++n_elements_;
    if (field_ == kOffsets) {
      if (n_elements_ > 2) return Fail(absl::StrCat("data_offsets is too long ", Place()));
      (n_elements_ == 1 ? entry.begin : entry.end) = value;
      return true;
    }
    if (n_elements_ > kMaxDims) {
      return Fail(absl::StrFormat("the shape has more than %d dimensions %s", kMaxDims, Place()));
    }
    entry.shape.push_back(value);
    return true;
  }

 private:
  enum Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  bool TensorKey(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Fail(absl::StrFormat("a tensor name has %d bytes; 1 to %d are allowed", name.size(),
                                  kMaxNameBytes));
    }
    if (!names_.insert(name).second) {
      return Fail(absl::StrFormat("\"%s\" is listed twice", name));
    }
    seen_ = field_ = kNone;
    if (in_metadata_) return true;
    if (entries_.size() == kMaxSafetensors) {
      return Fail(absl::StrFormat("there are more than %d tensors", kMaxSafetensors));
    }
    entries_.emplace_back().name = name;
    return true;
  }

  bool FieldKey(const std::string& name) {
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : kNone;
    if (field_ == kNone) {
      return Fail(
          absl::StrFormat("there is an unknown field \"%s\" %s", name.substr(0, 64), Place()));
    }
    if ((seen_ & field_) != 0) return Fail(absl::StrFormat("%s is given twice %s", name, Place()));
    seen_ |= field_;
    return true;
  }

  std::string Place() const override {
    if (in_metadata_) return "in \"__metadata__\"";
    if (entries_.empty()) return "before the first tensor";
    return absl::StrFormat("in tensor \"%s\"", entries_.back().name);
  }

  std::vector<SafetensorsEntry> entries_;
  absl::flat_hash_set<std::string> names_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  size_t n_elements_ = 0;
  unsigned field_ = kNone;
  unsigned seen_ = kNone;
};

// {"metadata": {"total_size": 1}, "weight_map": {"name": "file"}}
class IndexSax : public StrictSax {
 public:
  std::map<std::string, std::string> TakeMap() { return std::move(map_); }

  bool start_object(size_t) override {
    if (depth_ > 1 || (depth_ == 1 && section_ == kOther)) return Unexpected("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      section_ = name == "weight_map" ? kWeightMap : name == "metadata" ? kMetadata : kOther;
      if (section_ == kWeightMap && std::exchange(seen_map_, true)) {
        return Fail("\"weight_map\" is given twice");
      }
      return true;
    }
    if (section_ != kWeightMap) return true;
    if (name.empty() || name.size() > kMaxNameBytes || map_.size() == kMaxSafetensors) {
      return Fail(
          absl::StrFormat("a tensor name has no or more than %d bytes, or there are more "
                          "than %d",
                          kMaxNameBytes, kMaxSafetensors));
    }
    const auto [it, added] = map_.try_emplace(name);
    if (!added) return Fail(absl::StrFormat("\"%s\" is listed twice", name));
    file_ = &it->second;
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2 || section_ != kWeightMap) return depth_ > 0 || Unexpected("a string");
    if (value.empty() || value.size() > 255 || value.find('/') != std::string::npos ||
        value[0] == '.') {
      return Fail(absl::StrFormat("\"%s\" is not the name of a file beside the index",
                                  value.substr(0, 255)));
    }
    *file_ = value;
    return true;
  }

  // Metadata may hold any scalar.
  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a bool"); }
  bool number_integer(number_integer_t) override { return Scalar("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Scalar("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Scalar("a number"); }

 private:
  enum Section { kOther, kMetadata, kWeightMap };

  bool Scalar(std::string_view found) {
    return (depth_ > 0 && section_ != kWeightMap) || Unexpected(found);
  }
  std::string Place() const override {
    return section_ == kWeightMap ? "in \"weight_map\"" : "outside \"weight_map\"";
  }

  std::map<std::string, std::string> map_;
  std::string* file_ = nullptr;  // the value of the last key; a new key may move it, then it is set
  int depth_ = 0;
  bool seen_map_ = false;
  Section section_ = kOther;
};

absl::Status Malformed(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrFormat("%s: %s", path, what));
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsJson(std::string_view text,
                                                                   const std::string& path) {
  HeaderSax sax;
  if (!json::sax_parse(text.begin(), text.end(), &sax)) return Malformed(path, sax.error());
  return sax.TakeEntries();
}

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text,
                                                                         const std::string& path) {
  IndexSax sax;
  if (!json::sax_parse(text.begin(), text.end(), &sax)) return Malformed(path, sax.error());
  std::map<std::string, std::string> map = sax.TakeMap();
  if (map.empty()) return Malformed(path, "it has no \"weight_map\" of tensors");
  return map;
}

}  // namespace sluice
