#include "io/status.h"
