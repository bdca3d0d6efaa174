// Reader of tokenizer.json, the format of Hugging Face's tokenizers library.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/json_access.h"
#include "layout/pre_tokenizer_names.h"
#include "layout/tokenizer_parts.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581

// Appends the steps of a stage: itself, or those of a Sequence, which lists them under `list_key`.
void AppendSteps(const json& stage, const char* list_key, std::vector<const json*>& steps) {
  const json* list =
      StringMember(stage, "type") == "Sequence" ? FindMember(stage, list_key) : nullptr;
  if (list == nullptr || !list->is_array()) return steps.push_back(&stage);
  for (const json& step : *list) AppendSteps(step, list_key, steps);
}

// Of the normalizer, pre_tokenizer or post_processor.
std::vector<const json*> Steps(const json& root, const char* key, const char* list_key) {
  std::vector<const json*> steps;
  const json* stage = FindMember(root, key);
  if (stage != nullptr) AppendSteps(*stage, list_key, steps);
  return steps;
}

bool BoolMember(const json& value, const char* key, bool otherwise) {
  const json* member = FindMember(value, key);
  return member != nullptr && member->is_boolean() ? member->get<bool>() : otherwise;
}

class TokenizerJsonReader {
 public:
  TokenizerJsonReader(const json& root, const std::string& path, VocabularyFile& file)
      : root_(root), path_(path), file_(file), data_(file.imported.data) {}

  absl::Status Read() {
    SLUICE_RETURN_IF_ERROR(CheckModel());
    SLUICE_RETURN_IF_ERROR(ChooseKind());
    SLUICE_RETURN_IF_ERROR(ReadVocabulary());
    SLUICE_RETURN_IF_ERROR(ReadMerges());
    if (data_.kind == TokenizerKind::kByteBpe) {
      ReadPreTokenizer();
      SLUICE_RETURN_IF_ERROR(ReadMember(*model_, "ignore_merges", path_, data_.ignore_merges));
    } else {
      SLUICE_RETURN_IF_ERROR(ScoreByMerges());
      ReadSpacePrefix();
    }
    WarnOfNormalizers();
    ReadPostProcessor();
    return absl::OkStatus();
  }

 private:
  absl::Status CheckModel() {
    model_ = FindMember(root_, "model");
    if (model_ == nullptr || !model_->is_object()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: has no object \"model\"", path_));
    }
    std::string type = "BPE";
    SLUICE_RETURN_IF_ERROR(ReadMember(*model_, "type", path_, type));
    if (type != "BPE") {
      return absl::UnimplementedError(absl::StrFormat(
          "%s: the model is of type \"%s\"; only \"BPE\" is supported", path_, type));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      std::string affix;
      SLUICE_RETURN_IF_ERROR(ReadMember(*model_, key, path_, affix));
      if (!affix.empty()) {
        return absl::UnimplementedError(
            absl::StrFormat("%s: the model has \"%s\", which is not supported", path_, key));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ChooseKind() {
    SLUICE_RETURN_IF_ERROR(ReadMember(*model_, "byte_fallback", path_, byte_fallback_));
    bool marks_spaces = false;
    for (const json* step : Steps(root_, "pre_tokenizer", "pretokenizers")) {
      const std::string_view type = StringMember(*step, "type");
      if (type == "ByteLevel") {
        data_.kind = TokenizerKind::kByteBpe;
        return absl::OkStatus();
      }
      if (type == "Metaspace") marks_spaces = true;
    }
    for (const json* step : Steps(root_, "normalizer", "normalizers")) {
      if (StringMember(*step, "content") == kSpaceMark) marks_spaces = true;
    }
    data_.kind = TokenizerKind::kSentencePiece;
    if (byte_fallback_ || marks_spaces) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrFormat("%s: is neither byte-level BPE (no ByteLevel pre_tokenizer) nor like "
                        "SentencePiece (no byte_fallback, no U+2581)",
                        path_));
  }

  absl::Status ReadVocabulary() {
    const json* vocab = FindMember(*model_, "vocab");
    if (vocab == nullptr || !vocab->is_object()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: model.vocab is no object", path_));
    }
    std::vector<PlacedToken> placed;
    placed.reserve(vocab->size());
    const bool has_byte_tokens = data_.kind == TokenizerKind::kSentencePiece && byte_fallback_;
    for (const auto& [text, id] : vocab->items()) {
      const bool is_byte = has_byte_tokens && ParseByteToken(text) >= 0;
      SLUICE_ASSIGN_OR_RETURN(const int32_t token_id, JsonTokenId(id, path_, "an id in vocab"));
      placed.push_back({token_id, text, is_byte ? TokenType::kByte : TokenType::kNormal});
    }
    SLUICE_RETURN_IF_ERROR(ReadAddedTokens(placed));
    SLUICE_RETURN_IF_ERROR(Annotate(PlaceTokens(std::move(placed), data_), path_));
    IndexTokens();
    std::string unknown;
    SLUICE_RETURN_IF_ERROR(ReadMember(*model_, "unk_token", path_, unknown));
    if (!unknown.empty()) data_.unk = Find(unknown);
    // Byte-level BPE has none; its files may name a control token.
    if (data_.unk != kNoToken && data_.kind == TokenizerKind::kSentencePiece) {
      data_.types[data_.unk] = TokenType::kUnknown;
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens(std::vector<PlacedToken>& placed) {
    const json* added = FindMember(root_, "added_tokens");
    if (added == nullptr) return absl::OkStatus();
    if (!added->is_array()) return WrongJson(path_, "added_tokens", *added, "an array");
    WarnOfAddedTokens(*added);
    for (const json& token : *added) {
      const json* id = FindMember(token, "id");
      const std::string_view content = StringMember(token, "content");
      if (id == nullptr || content.empty()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: an entry of added_tokens has no id or no content", path_));
      }
      SLUICE_ASSIGN_OR_RETURN(const int32_t token_id, JsonTokenId(*id, path_, "an added id"));
      bool special = false;
      SLUICE_RETURN_IF_ERROR(ReadMember(token, "special", path_, special));
      placed.push_back({token_id, std::string(content),
                        special ? TokenType::kControl : TokenType::kUserDefined});
    }
    return absl::OkStatus();
  }

  // One warning for each field that is not followed, naming the first token that has it.
  void WarnOfAddedTokens(const json& added) {
    for (const char* field : {"lstrip", "rstrip", "single_word"}) {
      for (const json& token : added) {
        if (!BoolMember(token, field, false)) continue;
        Warn(
            absl::StrFormat("asks for %s with \"%s\" and the like, which is not followed; text "
                            "around such a token may give other tokens",
                            field, StringMember(token, "content").substr(0, 64)));
        break;
      }
    }
  }

  // Merges are "left right" or, in newer files, ["left", "right"].
  absl::Status ReadMerges() {
    const json* merges = FindMember(*model_, "merges");
    if (merges == nullptr || !merges->is_array()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: model.merges is no array", path_));
    }
    data_.merges.reserve(merges->size());
    for (const json& merge : *merges) {
      if (const auto* text = merge.get_ptr<const std::string*>()) {
        data_.merges.push_back(*text);
        continue;
      }
      const bool is_pair =
          merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (!is_pair) return WrongJson(path_, "a merge", merge, "two strings, or one with a space");
      data_.merges.push_back(absl::StrCat(merge[0].get_ref<const std::string&>(), " ",
                                          merge[1].get_ref<const std::string&>()));
    }
    return absl::OkStatus();
  }

  // SentencePiece joins the pair whose concatenation has the highest score, BPE the pair whose
  // merge has the lowest rank. Files of this kind were converted from SentencePiece: the merges
  // that give one token follow each other, so minus the first of their ranks is such a score. A
  // token of several characters that no merge gives cannot come out of text.
  absl::Status ScoreByMerges() {
    data_.scores.assign(data_.tokens.size(), 0.0f);
    std::vector<bool> is_merged(data_.tokens.size());
    size_t n_dropped = 0;
    for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
      const std::string& merge = data_.merges[rank];
      const size_t space = merge.find(' ');
      if (space == std::string::npos) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: merge %d is \"%s\"; expected two parts", path_, rank, merge.substr(0, 64)));
      }
      const int32_t id = Find(merge.substr(0, space) + merge.substr(space + 1));
      if (id == kNoToken) {
        ++n_dropped;
        continue;
      }
      if (!is_merged[id]) data_.scores[id] = -static_cast<float>(rank);
      is_merged[id] = true;
    }
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const bool reachable = is_merged[id] || CountCharacters(data_.tokens[id]) <= 1;
      if (data_.types[id] == TokenType::kNormal && !reachable) data_.types[id] = TokenType::kUnused;
    }
    if (n_dropped > 0) {
      file_.imported.warnings.push_back(DroppedMerges(path_, n_dropped, data_.merges.size()));
    }
    data_.merges.clear();
    return absl::OkStatus();
  }

  static size_t CountCharacters(const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) {
      return (static_cast<uint8_t>(c) & 0xC0) != 0x80;  // not the continuation of a character
    });
  }

  void ReadSpacePrefix() {
    for (const json* step : Steps(root_, "normalizer", "normalizers")) {
      if (StringMember(*step, "type") == "Prepend") data_.space_prefix = SpacePrefix::kEachPart;
    }
    for (const json* step : Steps(root_, "pre_tokenizer", "pretokenizers")) {
      if (StringMember(*step, "type") != "Metaspace") continue;
      std::string_view scheme = StringMember(*step, "prepend_scheme");
      // Older files have a flag instead.
      if (scheme.empty()) scheme = BoolMember(*step, "add_prefix_space", true) ? "always" : "never";
      data_.space_prefix = scheme == "always"  ? SpacePrefix::kEachPartUnlessSpace
                           : scheme == "first" ? SpacePrefix::kFirstPartUnlessSpace
                                               : SpacePrefix::kNone;
    }
  }

  void ReadPreTokenizer() {
    std::vector<std::string> steps;
    for (const json* step : Steps(root_, "pre_tokenizer", "pretokenizers")) {
      std::string name = StepName(*step);
      if (!name.empty()) steps.push_back(std::move(name));
    }
    if (const auto known = PreTokenizerBySteps(steps)) {
      data_.pre = *known;
      return;
    }
    Warn(
        "has a pre_tokenizer that is not known; taking the default, which may split text into "
        "other tokens");
  }

  // As PreTokenizerBySteps wants it.
  std::string StepName(const json& step) {
    const std::string_view type = StringMember(step, "type");
    if (type == "ByteLevel") {
      if (BoolMember(step, "add_prefix_space", true)) {
        Warn("asks for a space in front of the text (add_prefix_space), which is not added");
      }
      return BoolMember(step, "use_regex", true) ? "ByteLevel regex" : "";
    }
    if (type == "Digits") {
      return BoolMember(step, "individual_digits", false) ? "Digits individual" : "Digits";
    }
    if (type == "Split") {
      const json* pattern = FindMember(step, "pattern");
      const std::string_view regex = pattern ? StringMember(*pattern, "Regex") : "";
      const std::string_view behavior = StringMember(step, "behavior");
      const bool invert = BoolMember(step, "invert", false);
      // Both keep the matches as pieces of their own.
      const bool isolates = behavior == (invert ? "Removed" : "Isolated");
      return isolates && !regex.empty() ? std::string(regex) : "Split of another kind";
    }
    return std::string(type);
  }

  void WarnOfNormalizers() {
    for (const json* step : Steps(root_, "normalizer", "normalizers")) {
      const std::string_view type = StringMember(*step, "type");
      // With SentencePiece these are the space prefix and the marks for spaces.
      const bool is_applied = data_.kind == TokenizerKind::kSentencePiece &&
                              (type == "Prepend" || StringMember(*step, "content") == kSpaceMark);
      if (is_applied) continue;
      Warn(
          absl::StrFormat("asks for the normalisation \"%s\", which is not applied; text that it "
                          "would change may give other tokens",
                          type.substr(0, 64)));
    }
  }

  // What the post-processor puts around a single text.
  void ReadPostProcessor() {
    for (const json* step : Steps(root_, "post_processor", "processors")) {
      const std::string_view type = StringMember(*step, "type");
      if (type == "TemplateProcessing") {
        ReadTemplate(*step);
      } else if (type != "ByteLevel") {  // which changes no ids
        Warn(
            absl::StrFormat("has the post-processor \"%s\", which is not known; what it adds to a "
                            "text is not added",
                            type.substr(0, 64)));
      }
    }
  }

  void ReadTemplate(const json& step) {
    const json* single = FindMember(step, "single");
    if (single == nullptr || !single->is_array()) return;
    file_.add_bos = file_.add_eos = false;
    bool behind = false, several = false;
    for (const json& part : *single) {
      if (FindMember(part, "Sequence") != nullptr) behind = true;
      const json* special = FindMember(part, "SpecialToken");
      if (special == nullptr) continue;
      std::optional<bool>& adds = behind ? file_.add_eos : file_.add_bos;
      several = several || *adds;
      adds = true;
      (behind ? file_.eos : file_.bos) = StringMember(*special, "id");
    }
    if (several) {
      Warn("puts several special tokens on one side of a text; only the last of them is added");
    }
  }

  void Warn(std::string_view what) {
    file_.imported.warnings.push_back(absl::StrFormat("%s %s", path_, what));
  }

  void IndexTokens() {
    ids_.reserve(data_.tokens.size());
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      ids_.emplace(data_.tokens[id], static_cast<int32_t>(id));
    }
  }

  int32_t Find(const std::string& token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? kNoToken : it->second;
  }

  const json& root_;
  const std::string& path_;
  VocabularyFile& file_;
  TokenizerData& data_;
  const json* model_ = nullptr;
  bool byte_fallback_ = false;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;  // into data_.tokens
};

}  // namespace

absl::StatusOr<VocabularyFile> ReadTokenizerJson(std::string_view text, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, path));
  VocabularyFile file;
  SLUICE_RETURN_IF_ERROR(TokenizerJsonReader(root, path, file).Read());
  return file;
}

}  // namespace sluice
