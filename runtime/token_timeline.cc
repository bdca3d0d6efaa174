#include "runtime/token_timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice {
namespace {

struct Piece {
  double read_ns = 0, compute_ns = 0;
};

// The device and the ring. All reads of a token are asked for in rising time.
class Reads {
 public:
  Reads(const std::vector<Piece>& pieces, size_t n_buffers) : pieces_(pieces) {
    landed_.reserve(pieces.size());
    for (size_t i = 0; i < std::max<size_t>(n_buffers, 1); ++i) Submit(0);
  }

  // The time at which a read that is asked for at `now` has come.
  double Read(double now, double read_ns) {
    free_ = std::max(free_, now) + read_ns;
    return free_;
  }
  // The time at which the next piece has been used by a thread that came for it at `now`.
  double Consume(double now) {
    const size_t piece = consumed_++;
    const double done = std::max(now, landed_[piece]) + pieces_[piece].compute_ns;
    Submit(done);
    return done;
  }

 private:
  void Submit(double now) {
    if (landed_.size() < pieces_.size())
      landed_.push_back(Read(now, pieces_[landed_.size()].read_ns));
  }

  const std::vector<Piece>& pieces_;
  std::vector<double> landed_;  // times
  size_t consumed_ = 0;
  double free_ = 0;  // when the device is
};

size_t NumPieces(const TokenWork& work, const TokenStage& stage) {
  return static_cast<size_t>(std::ceil(stage.stream_bytes / work.piece_bytes));
}

}  // namespace

double TokenNs(const TokenWork& work, const TokenCost& cost) {
  double weight = 0;
  for (const TokenStage& s : work.stages) {
    weight += s.kept_bytes + cost.flash_weight * (s.stream_bytes + s.miss_bytes);
  }
  const double kept_ns = weight > 0 ? cost.compute_ns / weight : 0;  // by byte
  const double flash_ns = cost.flash_weight * kept_ns;
  std::vector<Piece> pieces;
  for (const TokenStage& s : work.stages) {
    const size_t n = NumPieces(work, s);
    const double bytes = n > 0 ? s.stream_bytes / static_cast<double>(n) : 0;
    const double read_ns = work.piece_ns * bytes / work.piece_bytes * cost.io_factor;
    pieces.insert(pieces.end(), n, {read_ns, bytes * flash_ns});
  }
  Reads reads(pieces, work.n_buffers);
  double now = 0;
  for (const TokenStage& s : work.stages) {
    const double landed = s.miss_ns > 0 ? reads.Read(now, s.miss_ns * cost.io_factor) : now;
    now = std::max(now + s.kept_bytes * kept_ns, landed) + s.miss_bytes * flash_ns;
    for (size_t i = NumPieces(work, s); i > 0; --i) now = reads.Consume(now);
  }
  return weight > 0 ? now : now + cost.compute_ns;
}

}  // namespace sluice
