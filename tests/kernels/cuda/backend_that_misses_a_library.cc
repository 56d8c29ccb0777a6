// A library that needs another one (missing_library.cc), which is not found when it is loaded.
extern "C" const char* MissingVersion();
extern "C" const char* StagecoachCudaVersion();
extern "C" const char* StagecoachCudaVersion() { return MissingVersion(); }
