// Running kernels on torch's threads: those of one step share them.
//
// The launches of a step lie end to end on a line, each as long as its work. Each thread takes as long a part of the line
// as the others, always the same one for a number of threads: results do not depend on chance.
#include "platform/openmp.h"
#include "program/program.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace kiln {
namespace {

// In picoseconds. A parallel region costs about a microsecond; kiln/target/cpu/workload.py has it for single kernels.
constexpr int64_t pays_for_a_thread = 3'000'000;
constexpr int64_t work_of_a_call = 10'000;
constexpr int64_t most_work = int64_t{1} << 48;  // for each launch, so that sums do not overflow

struct Piece {
  Entry entry;
  void* const* pointers;
  const int64_t* sizes;
  int64_t units;
  int64_t place, work;  // on the line
  bool is_whole;

  // How many units lie before a place on the line.
  int64_t units_before(int64_t where) const {
    if (where <= place) return 0;
    if (where >= place + work) return units;
    if (is_whole) return 2 * (where - place) < work ? 0 : units;
    return static_cast<int64_t>(static_cast<unsigned __int128>(where - place) * units / work);
  }

  void run(int64_t start, int64_t end) const {
    if (start < end) entry(pointers, sizes, start, end);
  }
};

struct Line {
  c10::SmallVector<Piece, 4> pieces;
  int64_t work = 0;
};

void run_share(void* data) {
  const Line& line = *static_cast<const Line*>(data);
  const int64_t number = platform::thread_number(), count = platform::thread_count();
  const auto boundary = [&](int64_t k) { return static_cast<int64_t>(static_cast<__int128>(line.work) * k / count); };
  const int64_t low = boundary(number), high = boundary(number + 1);
  for (const Piece& piece : line.pieces) {
    if (piece.place < high && piece.place + piece.work > low) piece.run(piece.units_before(low), piece.units_before(high));
  }
}

int64_t useful_threads(const Line& line) {
  if (line.work < 2 * pays_for_a_thread || !platform::has_openmp() || at::in_parallel_region()) return 1;
  int64_t parts = 0;
  for (const Piece& piece : line.pieces) parts += piece.is_whole ? std::min<int64_t>(piece.units, 1) : piece.units;
  return std::min({static_cast<int64_t>(at::get_num_threads()), line.work / pays_for_a_thread, parts});
}

void run_line(Line& line) {
  int64_t threads = useful_threads(line);
  if (threads > 1) {
    platform::run_parallel(run_share, &line, threads);
    return;
  }
  for (const Piece& piece : line.pieces) piece.run(0, piece.units);
}

}  // namespace

void run(const LaunchStep& step, Frame& frame) {
  size_t pointer_count = 0, size_count = 0;
  for (const Launch& launch : step.launches) {
    pointer_count += launch.pointers.size();
    size_count += launch.sizes.size();
  }
  c10::SmallVector<void*, 32> pointers;
  c10::SmallVector<int64_t, 16> sizes;
  pointers.reserve(pointer_count);  // so that they stay where they are
  sizes.reserve(size_count);
  Line line;
  line.pieces.reserve(step.launches.size());
  c10::SmallVector<int64_t, 8> place;
  for (const Launch& launch : step.launches) {
    auto now = launch.extent.now(frame, place);
    int64_t units = now[0], work = std::clamp<int64_t>(now[1], 0, most_work) + work_of_a_call;
    if (units > 0) {
      line.pieces.push_back({launch.entry, pointers.end(), sizes.end(), units, line.work, work, launch.is_whole});
      line.work += work;
    }
    for (const Pointer& pointer : launch.pointers) pointers.push_back(address_of(pointer, frame));
    now = launch.sizes.now(frame, place);
    sizes.append(now.begin(), now.end());
  }
  {
    ProfilerRange range(at::RecordScope::FUNCTION, step.name);
    run_line(line);
  }
  for (const Launch& launch : step.launches) let_go(launch.pointers, frame);
}

}  // namespace kiln
