#include "tools/stagecoach/program.h"

int main(int argc, char** argv) { return stagecoach::tools::RunProgram(argc, argv); }
