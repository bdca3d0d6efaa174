#include "layout/weight_type.h"
