// SentencePiece's BPE: the text as a whole is split into characters, and the two neighbours whose
// concatenation is the token of highest score are joined, over and over. Characters that are no
// token fall back to the tokens of their bytes.

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "runtime/tokenizer/symbol_merger.h"
#include "runtime/tokenizer/text_encoder.h"
#include "runtime/tokenizer/unicode.h"

namespace sluice {
namespace {

// Scores as integers that order the other way round: the highest score has rank 0, equal scores
// have equal ranks.
std::vector<int32_t> RanksOf(const std::vector<float>& scores) {
  std::vector<int32_t> by_score(scores.size());
  std::iota(by_score.begin(), by_score.end(), 0);
  std::sort(by_score.begin(), by_score.end(),
            [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  std::vector<int32_t> ranks(scores.size());
  int32_t rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && scores[by_score[i]] != scores[by_score[i - 1]]) ++rank;
    ranks[by_score[i]] = rank;
  }
  return ranks;
}

bool HasSpaceAfterOther(std::string_view bytes) {
  for (size_t i = 1; i < bytes.size(); ++i) {
    if (bytes[i] == ' ' && bytes[i - 1] != ' ') return true;
  }
  return false;
}

class SentencePieceEncoder : public TextEncoder {
 public:
  SentencePieceEncoder(const TokenizerData& data, const TokenTable& table)
      : table_(table), ranks_(RanksOf(data.scores)), unk_(data.unk) {
    byte_ids_.fill(kNoToken);
    for (size_t id = data.tokens.size(); id-- > 0;) {
      if (data.types[id] == TokenType::kByte) {
        byte_ids_[ParseByteToken(data.tokens[id])] = static_cast<int32_t>(id);
      } else if (data.types[id] == TokenType::kNormal && HasSpaceAfterOther(table[id])) {
        words_are_independent_ = false;
      }
    }
  }

  void Encode(std::string_view text, bool space_prefix, std::vector<int32_t>& ids) const override {
    std::string normal = ReplaceSpaceMarks(text);
    if (space_prefix) normal.insert(normal.begin(), ' ');
    SymbolMerger merger;
    for (size_t begin = 0; begin < normal.size();) {
      const size_t end = EndOfIndependentPart(normal, begin);
      EncodePart(std::string_view(normal).substr(begin, end - begin), merger, ids);
      begin = end;
    }
  }

  size_t memory_bytes() const override {
    return sizeof(*this) + ranks_.capacity() * sizeof(int32_t);
  }

 private:
  // No merge joins a character with a space to its right unless a token has the two side by side.
  // Where none has, as in all vocabularies whose spaces are prefixes of words, the text can be cut
  // there without any change of the result.
  size_t EndOfIndependentPart(std::string_view text, size_t begin) const {
    if (!words_are_independent_) return text.size();
    const size_t word = text.find_first_not_of(' ', begin);
    return std::min(text.find(' ', word), text.size());
  }

  void EncodePart(std::string_view part, SymbolMerger& merger, std::vector<int32_t>& ids) const {
    merger.Clear();
    for (size_t pos = 0; pos < part.size();) {
      const uint32_t length = DecodeUtf8(part.substr(pos)).length;
      merger.Add(length, kNoToken);
      pos += length;
    }
    merger.Merge([&](const Symbol& left, const Symbol& right) -> MergeCandidate {
      const int32_t id = table_.Find(part.substr(left.begin, left.length + right.length));
      return id == kNoToken ? MergeCandidate{-1, kNoToken} : MergeCandidate{ranks_[id], id};
    });
    bool after_unknown = false;
    merger.ForEach([&](const Symbol& symbol) {
      const std::string_view bytes = part.substr(symbol.begin, symbol.length);
      const int32_t id = symbol.id == kNoToken ? table_.Find(bytes) : symbol.id;
      if (id == kNoToken) return AppendBytes(bytes, after_unknown, ids);
      ids.push_back(id);
      after_unknown = false;
    });
  }

  // A run of bytes without a token becomes one unknown token.
  void AppendBytes(std::string_view bytes, bool& after_unknown, std::vector<int32_t>& ids) const {
    for (const char c : bytes) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id != kNoToken) {
        ids.push_back(id);
      } else if (unk_ != kNoToken && !after_unknown) {
        ids.push_back(unk_);
      }
      after_unknown = id == kNoToken;
    }
  }

  const TokenTable& table_;
  std::vector<int32_t> ranks_;  // by id
  std::array<int32_t, 256> byte_ids_;
  int32_t unk_;
  bool words_are_independent_ = true;
};

}  // namespace

std::string ReplaceSpaceMarks(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t mark = std::min(text.find(kSpaceMark, pos), text.size());
    out.append(text.substr(pos, mark - pos));
    if (mark < text.size()) out.push_back(' ');
    pos = mark + kSpaceMark.size();
  }
  return out;
}

std::unique_ptr<TextEncoder> MakeSentencePieceEncoder(const TokenizerData& data,
                                                      const TokenTable& table) {
  return std::make_unique<SentencePieceEncoder>(data, table);
}

}  // namespace sluice
