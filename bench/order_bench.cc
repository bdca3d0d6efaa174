// What the order of neurons is worth on held-out tokens: the original order, a frequency sort, and
// the path over the graph of co-activation. Of planted clusters; or of a model and its recorded
// activations, modelled and read for real from the model's file, through the I/O thread that the
// decoder uses. The orders alternate, layer by layer, so that a machine that slows down slows all.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "bench/friend_bundles.h"
#include "bench/planted_trace.h"
#include "bench/timed_reader.h"
#include "io/aligned_buffer.h"
#include "io/status.h"
#include "io/suite/suite.h"
#include "layout/order_metrics.h"
#include "predictor/activation_trace.h"

namespace sluice {
namespace {

struct Flags {
  std::string model, trace, device = "auto", emulate;
  double held_out = 25;  // percent of the tokens, the last ones
  int repeats = 3;
  uint32_t threads = 2;
  bool speed = false;
};

using Orders = std::vector<std::vector<uint32_t>>;  // by layer, the neuron at each position
enum Way { kOriginal, kFrequency, kCoactivation, kWays };
constexpr std::array<const char*, kWays> kWayNames = {"original", "frequency sort",
                                                      "co-activation"};

absl::StatusOr<std::array<Orders, kWays>> MakeOrders(
    const ActiveSets& train, const std::vector<std::vector<uint32_t>>& counts, uint32_t threads) {
  std::array<Orders, kWays> orders;
  std::vector<std::span<const uint32_t>> spans;
  for (const std::vector<uint32_t>& layer : counts) {
    spans.emplace_back(layer);
    std::vector<uint32_t>& original = orders[kOriginal].emplace_back(train.n_neurons);
    std::iota(original.begin(), original.end(), 0u);
    orders[kFrequency].push_back(ByFrequency(layer));
  }
  SLUICE_ASSIGN_OR_RETURN(orders[kCoactivation],
                          OrderNeurons(train, spans, train.n_tokens, {.n_threads = threads}));
  return orders;
}

// --- Planted clusters ---

// An operation costs 8 us and bytes 3.7 GB/s, whatever is in flight.
absl::StatusOr<DeviceProfile> StraightLine() {
  DeviceModel::Point point;
  point.block = 4096;
  point.megabytes_per_second = 450;
  SLUICE_ASSIGN_OR_RETURN(DeviceModel model,
                          DeviceModel::FromPoints("8 us + bytes / 3.7 GB/s", {point}));
  DeviceProfile profile(std::move(model));
  profile.AddFit({128 << 20, 1, 8000, 1 / 3.7});
  return profile;
}

BundleLayout PlantedLayout(uint32_t n_neurons) {
  BundleLayout bundles;
  bundles.block = 4096;
  bundles.stride = 8192;
  bundles.bundles_per_blob = 64;
  bundles.blob_bytes = kBlobAlignment;
  bundles.layer_offsets = {0};
  bundles.d_ff = n_neurons;
  return bundles;
}

void PrintHead(const std::string& title, const char* more_columns, const char* more_dashes) {
  absl::PrintF(
      "\n%s\n\n| order | mean run | operations | MB | modelled ms | operations, gaps merged | MB | "
      "modelled ms%s |\n|---|---|---|---|---|---|---|---%s|\n",
      title, more_columns, more_dashes);
}

std::string Row(const char* name, const OrderCost& c) {
  return absl::StrFormat("| %s | %.2f | %.1f | %.3f | %.3f | %.1f | %.3f | %.3f", name,
                         c.mean_run(), c.exact.operations, c.exact.bytes / 1e6, c.exact.ns / 1e6,
                         c.merged.operations, c.merged.bytes / 1e6, c.merged.ns / 1e6);
}

absl::Status PrintPlanted(const PlantedTrace& trace, const DeviceProfile& profile,
                          uint32_t n_train) {
  const auto n_neurons = static_cast<uint32_t>(trace.cluster_of.size());
  const BundleLayout bundles = PlantedLayout(n_neurons);
  const auto n_tokens = static_cast<uint32_t>(trace.tokens.size());
  const ActiveSets train = trace.Sets(0, n_train), test = trace.Sets(n_train, n_tokens);
  SLUICE_ASSIGN_OR_RETURN(const auto orders, MakeOrders(train, {trace.Counts(0, n_train)}, 1));
  ReadMerger merger(profile, bundles.layer_bytes(), {32, 4 << 20}, 0);
  PrintHead(profile.model().name(), "", "");
  for (int w = 0; w < kWays; ++w) {
    absl::PrintF("%s |\n", Row(kWayNames[w], MeasureOrder(test, orders[w], bundles, merger)));
  }
  std::vector<uint32_t> planted = orders[kOriginal][0];
  std::stable_sort(planted.begin(), planted.end(), [&](uint32_t a, uint32_t b) {
    return trace.cluster_of[a] < trace.cluster_of[b];
  });
  const std::span<const std::vector<uint32_t>> one_layer(&planted, 1);
  absl::PrintF("%s |\n",
               Row("clusters as planted", MeasureOrder(test, one_layer, bundles, merger)));
  const MergedBatch pairs = ReadWithFriends(train, test, bundles.stride, merger);
  absl::PrintF("| closest friend copied | - | %.1f | %.3f | %.3f | - | - | - |\n", pairs.operations,
               pairs.bytes / 1e6, pairs.ns / 1e6);
  return absl::OkStatus();
}

absl::Status RunPlanted(const Flags& flags) {
  std::vector<DeviceProfile> profiles;
  SLUICE_ASSIGN_OR_RETURN(DeviceProfile line, StraightLine());
  profiles.push_back(std::move(line));
  if (!flags.emulate.empty()) {
    SLUICE_ASSIGN_OR_RETURN(DeviceProfile loaded, DeviceProfile::Load(flags.emulate));
    profiles.push_back(std::move(loaded));
  }
  for (const uint32_t n_hot : {0u, 32u}) {
    PlantedOptions options;
    options.n_hot = n_hot;
    const PlantedTrace trace = MakePlantedTrace(options);
    absl::PrintF(
        "\n%u neurons, %u clusters, %u hot neurons besides; 600 tokens to train, 200 held out\n",
        options.n_neurons, options.n_clusters, n_hot);
    for (const DeviceProfile& profile : profiles) {
      SLUICE_RETURN_IF_ERROR(PrintPlanted(trace, profile, 600));
    }
  }
  return absl::OkStatus();
}

// --- How long it takes ---

rusage Usage() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

double CpuSeconds(const rusage& u) {
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

absl::Status RunSpeed() {
  PlantedOptions options;
  options.n_neurons = 14336;
  options.n_clusters = 224;
  options.n_tokens = 4096;
  options.cluster_share = 0.14;
  const PlantedTrace trace = MakePlantedTrace(options);
  double active = 0;
  for (const auto& token : trace.tokens) active += static_cast<double>(token.size());
  const std::vector<uint32_t> counts = trace.Counts(0, options.n_tokens);
  const std::span<const uint32_t> spans[] = {counts};
  const rusage before = Usage();
  const ActiveSets sets = trace.Sets(0, options.n_tokens);
  SLUICE_RETURN_IF_ERROR(OrderNeurons(sets, spans, options.n_tokens, {}).status());
  const rusage after = Usage();
  absl::PrintF(
      "%u neurons, %u tokens, %.1f %% active: %.1f s of a core, peak RSS %d MiB (%d before)\n",
      options.n_neurons, options.n_tokens, 100 * active / options.n_tokens / options.n_neurons,
      CpuSeconds(after) - CpuSeconds(before), after.ru_maxrss / 1024, before.ru_maxrss / 1024);
  return absl::OkStatus();
}

// --- A model ---

// Some tokens of a trace; without the neurons that are hot, if those are given.
ActiveSets SetsOf(const ActivationTrace& trace, uint32_t begin, uint32_t end,
                  const std::vector<std::vector<bool>>* without) {
  return {trace.n_layers(), trace.n_neurons(), end - begin,
          [&trace, begin, without](uint32_t token, uint32_t layer, std::vector<uint32_t>* active) {
            trace.Get(begin + token, layer, active);
            if (without != nullptr) {
              std::erase_if(*active, [&](uint32_t n) { return (*without)[layer][n]; });
            }
          }};
}

class ModelBench {
 public:
  ModelBench(const SluiceFile& file, const BenchDevice& device) : file_(file), device_(device) {}

  absl::Status Open() {
    SLUICE_ASSIGN_OR_RETURN(storage_, device_.OpenStorage(file_));
    SLUICE_ASSIGN_OR_RETURN(arena_, AlignedBuffer::Allocate(file_.bundles().layer_bytes()));
    SLUICE_ASSIGN_OR_RETURN(bounce_, AlignedBuffer::Allocate(kMergeBytes));
    const std::array<std::span<std::byte>, 2> buffers = {arena_.span(), bounce_.span()};
    SLUICE_ASSIGN_OR_RETURN(
        reader_, TimedReader::Open(*storage_, device_, device_.MakeMerger(file_), buffers));
    return absl::OkStatus();
  }

  // The real time of a token in each order, in milliseconds; tokens times repeats.
  absl::StatusOr<std::array<std::vector<double>, kWays>> Read(
      const ActiveSets& sets, const std::array<Orders, kWays>& orders, int repeats) {
    std::array<std::vector<std::vector<uint32_t>>, kWays> positions;
    for (int w = 0; w < kWays; ++w) {
      for (const auto& order : orders[w]) positions[w].push_back(PositionsOf(order));
    }
    std::array<std::vector<double>, kWays> ms;
    for (uint32_t i = 0; i < sets.n_tokens * static_cast<uint32_t>(repeats); ++i) {
      const uint32_t token = i % sets.n_tokens;
      for (auto& times : ms) times.push_back(0);
      for (uint32_t layer = 0; layer < sets.n_layers; ++layer) {
        for (uint32_t k = 0; k < kWays; ++k) {
          const uint32_t way = WayAt(i, layer, k, kWays);
          SLUICE_ASSIGN_OR_RETURN(const double took,
                                  ReadSet(sets, token, layer, positions[way][layer]));
          ms[way].back() += took;
        }
      }
    }
    return ms;
  }

 private:
  absl::StatusOr<double> ReadSet(const ActiveSets& sets, uint32_t token, uint32_t layer,
                                 std::span<const uint32_t> position_of) {
    const BundleLayout& bundles = file_.bundles();
    sets.get(token, layer, &active_);
    ToPositions(position_of, &active_);
    reads_.clear();
    for (const uint32_t p : active_) {
      reads_.push_back({bundles.BundleOffset(layer, p), bundles.stride,
                        arena_.data() + size_t{p} * bundles.stride, 0});
    }
    if (reads_.empty()) return 0.0;
    return reader_->TimeMs(reads_);
  }

  const SluiceFile& file_;
  const BenchDevice& device_;
  std::unique_ptr<StorageFile> storage_;
  AlignedBuffer arena_, bounce_;
  std::unique_ptr<TimedReader> reader_;
  std::vector<uint32_t> active_;
  std::vector<IoRequest> reads_;
};

absl::Status PrintModel(const std::string& title, const ActiveSets& test,
                        const std::array<Orders, kWays>& orders, const SluiceFile& file,
                        const BenchDevice& device, int repeats) {
  ModelBench bench(file, device);
  SLUICE_RETURN_IF_ERROR(bench.Open());
  SLUICE_ASSIGN_OR_RETURN(const auto ms, bench.Read(test, orders, repeats));
  const std::unique_ptr<ReadMerger> merger = device.MakeMerger(file);
  const double original = SpreadOf(ms[kOriginal]).median;
  PrintHead(title, " | real ms (p5-p95) | against original", "|---|---");
  for (int w = 0; w < kWays; ++w) {
    const Spread real = SpreadOf(ms[w]);
    absl::PrintF("%s | %.2f (%.2f-%.2f) | %.2f x |\n",
                 Row(kWayNames[w], MeasureOrder(test, orders[w], file.bundles(), *merger)),
                 real.median, real.p5, real.p95, original / real.median);
  }
  return absl::OkStatus();
}

absl::Status RunModel(const Flags& flags) {
  SLUICE_ASSIGN_OR_RETURN(const auto file, SluiceFile::Open(flags.model));
  SLUICE_ASSIGN_OR_RETURN(const ActivationTrace trace, ActivationTrace::Load(flags.trace));
  if (trace.model_id() != file->model_id() || trace.n_neurons() != file->config().d_ff ||
      trace.n_layers() != file->config().n_layers) {
    return absl::InvalidArgumentError(flags.trace + " is the trace of another model than " +
                                      flags.model);
  }
  const auto n_train =
      static_cast<uint32_t>(trace.n_tokens() * (1 - std::clamp(flags.held_out, 0., 100.) / 100));
  const ActiveSets train = SetsOf(trace, 0, n_train, nullptr);
  std::vector<std::vector<uint32_t>> counts;
  std::vector<std::vector<bool>> hot;
  std::vector<uint32_t> active;
  double n_hot = 0;
  for (uint32_t layer = 0; layer < trace.n_layers(); ++layer) {
    std::vector<uint32_t>& count = counts.emplace_back(trace.n_neurons());
    for (uint32_t t = 0; t < n_train; ++t) {
      trace.Get(t, layer, &active);
      for (const uint32_t neuron : active) ++count[neuron];
    }
    std::vector<bool>& is_hot = hot.emplace_back(trace.n_neurons());
    const std::vector<uint32_t> order = ByFrequency(count);
    for (uint32_t p = 0; p < CountHot(count, n_train); ++p, ++n_hot) is_hot[order[p]] = true;
  }
  const rusage before = Usage();
  SLUICE_ASSIGN_OR_RETURN(const auto orders, MakeOrders(train, counts, flags.threads));
  const double seconds = CpuSeconds(Usage()) - CpuSeconds(before);
  SLUICE_ASSIGN_OR_RETURN(const BenchDevice device,
                          BenchDevice::Open(*file, flags.device, flags.emulate));
  absl::PrintF(
      "%s, %s: %u tokens to train, %u held out, %.1f %% of the neurons hot; ordered in %.1f s of a "
      "core\n",
      flags.model, device.Name(), n_train, trace.n_tokens() - n_train,
      100 * n_hot / trace.n_layers() / trace.n_neurons(), seconds);
  SLUICE_RETURN_IF_ERROR(PrintModel("all neurons",
                                    SetsOf(trace, n_train, trace.n_tokens(), nullptr), orders,
                                    *file, device, flags.repeats));
  return PrintModel("without the hot ones, as if pinned",
                    SetsOf(trace, n_train, trace.n_tokens(), &hot), orders, *file, device,
                    flags.repeats);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures what the order of neurons is worth on held-out tokens");
  CLI::Option* model =
      app.add_option("MODEL", flags.model, "A .sluice file; none: planted clusters");
  app.add_option("TRACE", flags.trace, "Of sluice generate --record-activations")->needs(model);
  app.add_option("--device", flags.device, "Profile; auto: a probe")->capture_default_str();
  app.add_option("--emulate", flags.emulate, "Profile of a device to emulate");
  app.add_option("--held-out", flags.held_out, "Percent of the tokens, the last ones")
      ->capture_default_str();
  app.add_option("-r,--repetitions", flags.repeats)->capture_default_str();
  app.add_option("-t,--threads", flags.threads)->capture_default_str();
  app.add_flag("--speed", flags.speed, "Time the ordering of one large layer on one thread");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = flags.speed           ? RunSpeed()
                              : flags.model.empty() ? RunPlanted(flags)
                                                    : RunModel(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "order_bench: %s\n", status.message());
  return 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
