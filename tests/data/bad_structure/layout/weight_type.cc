#include "layout/gguf.h"
