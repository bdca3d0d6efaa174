// What clang-format would mend is what this file shows.
// clang-format off
#include <vector>

#include "io/second.h"
