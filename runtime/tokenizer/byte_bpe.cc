// Byte-level BPE (Radford et al. 2019): the text is split into words, each word into bytes, and in
// each word the two neighbours whose merge has the lowest rank are joined, over and over.

#include <array>

#include "absl/strings/str_format.h"
#include "layout/printable.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/symbol_merger.h"
#include "runtime/tokenizer/text_encoder.h"
#include "runtime/tokenizer/unicode.h"

namespace sluice {
namespace {

// The alphabet in which vocabularies are stored: printable Latin-1 characters stand for the byte of
// their own code; the other 68 bytes, in order, are U+0100, U+0101, ...
constexpr bool IsStoredAsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

constexpr size_t kAlphabetEnd = 0x100 + 68;

// By code point; -1 for one that is not in the alphabet.
constexpr auto kAlphabet = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (int16_t& b : bytes) b = -1;
  size_t next = 0x100;
  for (int16_t b = 0; b < 256; ++b) bytes[IsStoredAsItself(b) ? b : next++] = b;
  return bytes;
}();

class ByteBpeEncoder : public TextEncoder {
 public:
  ByteBpeEncoder(const TokenizerData& data, const TokenTable& table, MergeTable merges)
      : table_(table),
        merges_(std::move(merges)),
        pre_(data.pre),
        ignore_merges_(data.ignore_merges) {
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      byte_ids_[b] = table.Find({&byte, 1});
      if (byte_ids_[b] == kNoToken) byte_ids_[b] = data.unk;
    }
  }

  void Encode(std::string_view text, bool /*space_prefix*/,
              std::vector<int32_t>& ids) const override {
    SymbolMerger merger;
    SplitWords(pre_, text, [&](std::string_view word) { EncodeWord(word, merger, ids); });
  }

  size_t memory_bytes() const override { return sizeof(*this) + merges_.memory_bytes(); }

 private:
  void EncodeWord(std::string_view word, SymbolMerger& merger, std::vector<int32_t>& ids) const {
    if (ignore_merges_) {
      const int32_t id = table_.Find(word);
      if (id != kNoToken) return ids.push_back(id);
    }
    merger.Clear();
    for (const char c : word) merger.Add(1, byte_ids_[static_cast<uint8_t>(c)]);
    merger.Merge([&](const Symbol& left, const Symbol& right) -> MergeCandidate {
      const int32_t rank = merges_.FindRank(left.id, right.id);
      return rank < 0 ? MergeCandidate{-1, kNoToken} : MergeCandidate{rank, merges_.Result(rank)};
    });
    merger.ForEach([&](const Symbol& symbol) {
      if (symbol.id != kNoToken) ids.push_back(symbol.id);
    });
  }

  const TokenTable& table_;
  MergeTable merges_;
  PreTokenizer pre_;
  bool ignore_merges_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace

std::string DecodeByteAlphabet(std::string_view token) {
  std::string out;
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Char c = DecodeUtf8(token.substr(pos));
    const int16_t byte = c.code_point < kAlphabetEnd ? kAlphabet[c.code_point] : int16_t{-1};
    if (byte >= 0) {
      out.push_back(static_cast<char>(byte));
    } else {
      out.append(token.substr(pos, c.length));
    }
    pos += c.length;
  }
  return out;
}

absl::StatusOr<std::unique_ptr<TextEncoder>> MakeByteBpeEncoder(const TokenizerData& data,
                                                                const TokenTable& table) {
  std::vector<MergeIds> merges = ResolveMerges(data);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    if (merges[rank].resolved()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "merge %d, \"%s\", has a part or a result that is not a token", rank, data.merges[rank]));
  }
  return std::make_unique<ByteBpeEncoder>(data, table, MergeTable(std::move(merges)));
}

}  // namespace sluice
