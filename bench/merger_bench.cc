// The read merger on the misses of a recorded trace, against one read per bundle and against whole
// blobs: modelled time, and real time through the I/O thread that the decoder uses, until every
// bundle is in its cache slot: from a whole blob each is copied there once the blob has landed. The
// three ways alternate, layer by layer, so that a machine that slows down slows all of them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "bench/timed_reader.h"
#include "io/status.h"
#include "io/suite/suite.h"
#include "predictor/activation_trace.h"
#include "runtime/miss_replay.h"

namespace sluice {
namespace {

struct Flags {
  std::string model, trace, device = "auto", emulate;
  std::vector<double> cached = {25, 50};  // percent of all bundles
  int repeats = 3;
};

enum Way { kSingle, kMerged, kBlobs, kWays };
constexpr std::array<const char*, kWays> kWayNames = {"one read per bundle", "merged",
                                                      "whole blobs"};

// One way of reading, and what it took.
struct Reader {
  std::unique_ptr<TimedReader> reader;
  std::vector<double> ms;  // of a token, all its layers
  double modelled_ms = 0;
};

// The blobs that hold the bundles of a batch.
struct WholeBlobs {
  std::vector<IoRequest> reads;  // tagged with their index
  std::vector<size_t> first;     // by blob: its first bundle in the batch; and the end of the last
};

class MergerBench {
 public:
  MergerBench(const SluiceFile& file, const ActivationTrace& trace, const BenchDevice& device)
      : file_(file), trace_(trace), device_(device) {}

  absl::Status Run(uint32_t n_slots, int repeats) {
    SLUICE_ASSIGN_OR_RETURN(storage_, device_.OpenStorage(file_));
    SLUICE_ASSIGN_OR_RETURN(blobs_, AlignedBuffer::Allocate(file_.bundles().layer_bytes()));
    SLUICE_ASSIGN_OR_RETURN(bounce_, AlignedBuffer::Allocate(kMergeBytes));
    for (int r = 0; r < repeats; ++r) SLUICE_RETURN_IF_ERROR(Replay(n_slots));
    return absl::OkStatus();
  }
  const Reader& reader(Way way) const { return readers_[way]; }
  double hit_rate() const { return hit_rate_; }
  double misses() const { return misses_; }  // in a layer of a token

 private:
  absl::Status Replay(uint32_t n_slots) {
    SLUICE_ASSIGN_OR_RETURN(const auto replay, MissReplay::Create(file_, trace_, n_slots));
    for (int w = 0; w < kWays; ++w) SLUICE_RETURN_IF_ERROR(Open(static_cast<Way>(w), *replay));
    ReadMerger model(*device_.profile, file_.bundles().layer_bytes(), {kMostInFlight, kMergeBytes},
                     ReadMerger::MarginFor(*device_.profile));
    for (Reader& r : readers_) r.modelled_ms = 0;
    const uint32_t warm = trace_.n_tokens() / 4;
    uint64_t hits = 0, misses = 0;
    for (uint32_t t = 0; t < trace_.n_tokens(); ++t) {
      if (t == warm) hits = replay->hits(), misses = replay->misses();
      std::array<double, kWays> ms = {};
      for (uint32_t l = 0; l < trace_.n_layers(); ++l) {
        const std::vector<IoRequest> reads = Copy(replay->Next(t, l));
        if (t < warm || reads.empty()) continue;
        const WholeBlobs blobs = BlobsOf(l, reads);
        for (int i = 0; i < kWays; ++i) {
          const auto way = static_cast<Way>(WayAt(t, l, static_cast<uint32_t>(i), kWays));
          SLUICE_ASSIGN_OR_RETURN(const double took, way == kBlobs
                                                         ? TimeBlobs(blobs, reads)
                                                         : readers_[way].reader->TimeMs(reads));
          ms[way] += took;
        }
        AddModelled(model, reads, blobs.reads);
      }
      for (int w = 0; t >= warm && w < kWays; ++w) readers_[w].ms.push_back(ms[w]);
    }
    hits = replay->hits() - hits;
    misses = replay->misses() - misses;
    const double n = trace_.n_tokens() - warm;
    hit_rate_ = static_cast<double>(hits) / static_cast<double>(hits + misses);
    misses_ = static_cast<double>(misses) / n / trace_.n_layers();
    for (Reader& r : readers_) {
      r.modelled_ms /= n;
      r.reader.reset();
    }
    return absl::OkStatus();
  }

  static std::vector<IoRequest> Copy(std::span<const IoRequest> reads) {
    return {reads.begin(), reads.end()};
  }

  absl::Status Open(Way way, const MissReplay& replay) {
    const std::array<std::span<std::byte>, 3> buffers = {replay.arena(), blobs_.span(),
                                                         bounce_.span()};
    SLUICE_ASSIGN_OR_RETURN(
        readers_[way].reader,
        TimedReader::Open(*storage_, device_, way == kMerged ? device_.MakeMerger(file_) : nullptr,
                          buffers));
    return absl::OkStatus();
  }

  WholeBlobs BlobsOf(uint32_t layer, std::span<const IoRequest> reads) {
    const BundleLayout& b = file_.bundles();
    const uint64_t begin = b.layer_offsets[layer];
    WholeBlobs blobs;
    for (size_t i = 0; i < reads.size(); ++i) {
      const uint64_t at = (reads[i].offset - begin) / b.blob_bytes * b.blob_bytes;
      if (!blobs.reads.empty() && blobs.reads.back().offset == begin + at) continue;
      const auto length =
          static_cast<uint32_t>(std::min(b.blob_bytes, file_.file_size() / 512 * 512 - begin - at));
      blobs.reads.push_back(
          {begin + at, length, blobs_.data() + at, static_cast<uint32_t>(blobs.first.size())});
      blobs.first.push_back(i);
    }
    blobs.first.push_back(reads.size());
    return blobs;
  }

  absl::StatusOr<double> TimeBlobs(const WholeBlobs& blobs, std::span<const IoRequest> reads) {
    return readers_[kBlobs].reader->TimeMs(blobs.reads, [&](uint32_t tag) {
      const IoRequest& blob = blobs.reads[tag];
      for (size_t i = blobs.first[tag]; i < blobs.first[tag + 1]; ++i) {
        std::memcpy(reads[i].dst, blob.dst + (reads[i].offset - blob.offset), reads[i].length);
      }
    });
  }

  void AddModelled(ReadMerger& model, std::span<const IoRequest> reads,
                   std::span<const IoRequest> blobs) {
    std::vector<uint64_t> single, whole;
    for (const IoRequest& r : reads) single.push_back(r.length);
    for (const IoRequest& r : blobs) whole.push_back(r.length);
    readers_[kSingle].modelled_ms += model.TimeNs(single) / 1e6;
    readers_[kBlobs].modelled_ms += model.TimeNs(whole) / 1e6;
    readers_[kMerged].modelled_ms += MergeAll(model, reads).ns / 1e6;
  }

  const SluiceFile& file_;
  const ActivationTrace& trace_;
  const BenchDevice& device_;
  std::unique_ptr<StorageFile> storage_;
  AlignedBuffer blobs_, bounce_;
  std::array<Reader, kWays> readers_;
  double hit_rate_ = 0, misses_ = 0;
};

absl::Status RunBench(const Flags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, SluiceFile::Open(flags.model));
  SLUICE_ASSIGN_OR_RETURN(const ActivationTrace trace, ActivationTrace::Load(flags.trace));
  SLUICE_ASSIGN_OR_RETURN(const BenchDevice device,
                          BenchDevice::Open(*file, flags.device, flags.emulate));
  absl::PrintF("%s, %s, %u tokens\n\n", flags.model, device.Name(), trace.n_tokens());
  absl::PrintF(
      "| cached | hit rate | misses a layer | way | modelled ms/token | real ms/token "
      "(p5-p95) | real, against the better of the others |\n|---|---|---|---|---|---|---|\n");
  for (const double percent : flags.cached) {
    const double all = 1.0 * file->config().d_ff * file->config().n_layers;
    MergerBench bench(*file, trace, device);
    SLUICE_RETURN_IF_ERROR(
        bench.Run(std::max(1u, static_cast<uint32_t>(all * percent / 100)), flags.repeats));
    std::array<Spread, kWays> real;
    for (int w = 0; w < kWays; ++w) real[w] = SpreadOf(bench.reader(static_cast<Way>(w)).ms);
    const double better = std::min(real[kSingle].median, real[kBlobs].median);
    for (int w = 0; w < kWays; ++w) {
      absl::PrintF("| %.0f %% | %.1f %% | %.0f | %s | %.2f | %.2f (%.2f-%.2f) | %.2f |\n", percent,
                   100 * bench.hit_rate(), bench.misses(), kWayNames[w],
                   bench.reader(static_cast<Way>(w)).modelled_ms, real[w].median, real[w].p5,
                   real[w].p95, real[w].median / better);
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Times the read merger on a recorded trace of activations");
  app.add_option("MODEL", flags.model, "A .sluice file")->required();
  app.add_option("TRACE", flags.trace, "Of sluice generate --record-activations")->required();
  app.add_option("--device", flags.device, "Profile; auto: a probe")->capture_default_str();
  app.add_option("--emulate", flags.emulate, "Profile of a device to emulate");
  app.add_option("--cached", flags.cached, "Percent of the bundles that the cache holds")
      ->delimiter(',');
  app.add_option("-r,--repetitions", flags.repeats)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = RunBench(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "merger_bench: %s\n", status.message());
  return 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
