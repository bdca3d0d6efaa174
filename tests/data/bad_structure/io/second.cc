// clang-format off: it would mend what this file shows.
#include <vector>

#include "io/second.h"
