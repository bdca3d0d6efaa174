#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs the unit tests.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/install_packages.sh
cmake --preset release
cmake --build --preset release
ctest --preset release
