#include "layout/placement_solver.h"

#include <CbcModel.hpp>
#include <ClpSolve.hpp>
#include <CoinError.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr double kRelativeGap = 1e-5;
constexpr double kAbsoluteGap = 0.999;  // activations are whole numbers
constexpr int kSeed = 1;
constexpr int kMostNodes = 1000;

// The rows of the program, and what is put into them.
class Rows {
 public:
  // A row of at most `upper`.
  int Add(double upper) {
    upper_.push_back(upper);
    return static_cast<int>(upper_.size()) - 1;
  }
  void Put(int row, int column, double element) {
    rows_.push_back(row);
    columns_.push_back(column);
    elements_.push_back(element);
  }
  void Load(const std::vector<double>& costs, OsiClpSolverInterface* solver) const {
    const CoinPackedMatrix matrix(/*colordered=*/true, rows_.data(), columns_.data(),
                                  elements_.data(), static_cast<CoinBigIndex>(elements_.size()));
    const std::vector<double> none(costs.size(), 0), one(costs.size(), 1);
    const std::vector<double> lower(upper_.size(), -solver->getInfinity());
    solver->loadProblem(matrix, none.data(), one.data(), costs.data(), lower.data(), upper_.data());
    for (int c = 0; c < static_cast<int>(costs.size()); ++c) solver->setInteger(c);
  }

 private:
  std::vector<int> rows_, columns_;
  std::vector<double> elements_, upper_;
};

// A step has no row that demands the step before it: that one gains more for its memory, so it is
// taken first anyway, and where it is as large, it does not matter which of them is called which.
// Two rows for a layer are left: none without the first step, and, where the last step is smaller
// than the others, not that one without all.
void LoadProgram(std::span<const PlacementSteps> layers, uint64_t budget_units,
                 OsiClpSolverInterface* solver) {
  Rows rows;
  std::vector<double> costs;
  uint64_t all_units = 0;
  for (const PlacementSteps& l : layers) {
    all_units = std::accumulate(l.units.begin(), l.units.end(), all_units);
  }
  const int budget = rows.Add(static_cast<double>(std::min(budget_units, all_units)));
  for (const PlacementSteps& l : layers) {
    const auto n = static_cast<int>(l.gains.size()), first = static_cast<int>(costs.size());
    for (int s = 0; s < n; ++s) {
      rows.Put(budget, first + s, static_cast<double>(l.units[s]));
      costs.push_back(-static_cast<double>(l.gains[s]));  // CBC minimises
    }
    if (n < 2) continue;
    const int none_without_first = rows.Add(0);
    rows.Put(none_without_first, first, 1 - n);
    for (int s = 1; s < n; ++s) rows.Put(none_without_first, first + s, 1);
    if (l.units[n - 1] == l.units[1] || n < 3) continue;
    const int last_after_all = rows.Add(0);
    rows.Put(last_after_all, first + n - 1, n - 2);
    for (int s = 1; s < n - 1; ++s) rows.Put(last_after_all, first + s, -1);
  }
  rows.Load(costs, solver);
}

void SetStart(std::span<const PlacementSteps> layers, std::span<const uint32_t> start,
              CbcModel* model) {
  std::vector<double> values;
  double gain = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t s = 0; s < layers[l].gains.size(); ++s) {
      values.push_back(s < start[l] ? 1 : 0);
      gain += values.back() * static_cast<double>(layers[l].gains[s]);
    }
  }
  model->setBestSolution(values.data(), static_cast<int>(values.size()), -gain, true);
}

absl::StatusOr<PlacementSolution> Solve(std::span<const PlacementSteps> layers,
                                        uint64_t budget_units, std::span<const uint32_t> start) {
  OsiClpSolverInterface solver;
  solver.messageHandler()->setLogLevel(0);
  solver.getModelPtr()->setLogLevel(0);
  ClpSolve quiet;
  quiet.setSpecialOption(2, 1);  // leave the program's handler of Ctrl-C alone
  solver.setSolveOptions(quiet);
  LoadProgram(layers, budget_units, &solver);
  CbcModel model(solver);
  model.setLogLevel(0);
  model.setRandomSeed(kSeed);
  model.setAllowableGap(kAbsoluteGap);
  model.setAllowableFractionGap(kRelativeGap);
  model.setMaximumNodes(kMostNodes);
  model.initialSolve();
  SetStart(layers, start, &model);
  model.branchAndBound();
  const bool ended = model.status() == 0 || model.isNodeLimitReached();
  if (!ended || model.bestSolution() == nullptr) {
    return absl::InternalError(absl::StrCat("placement: CBC ended with status ", model.status(),
                                            ", ", model.secondaryStatus()));
  }
  PlacementSolution solution;
  solution.bound = -model.getBestPossibleObjValue();
  const double* value = model.bestSolution();
  for (const PlacementSteps& layer : layers) {
    uint32_t taken = 0;
    for (size_t s = 0; s < layer.gains.size(); ++s) taken += std::lround(*value++) == 1;
    solution.steps.push_back(taken);
  }
  return solution;
}

}  // namespace

absl::StatusOr<PlacementSolution> SolvePlacement(std::span<const PlacementSteps> layers,
                                                 uint64_t budget_units,
                                                 std::span<const uint32_t> start) {
  const bool has_steps = std::any_of(layers.begin(), layers.end(),
                                     [](const PlacementSteps& l) { return !l.gains.empty(); });
  if (!has_steps) return PlacementSolution{std::vector<uint32_t>(layers.size(), 0), 0};
  try {
    return Solve(layers, budget_units, start);
  } catch (const CoinError& e) {  // CBC's way to fail; no exception leaves this file
    return absl::InternalError(
        absl::StrCat("placement: CBC: ", e.className(), "::", e.methodName(), ": ", e.message()));
  }
}

}  // namespace sluice
