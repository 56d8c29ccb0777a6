// A library that needs another one (missing_library.cc), which is not found at load time.
extern "C" const char* MissingVersion();
extern "C" const char* StagecoachCudaVersion();
extern "C" const char* StagecoachCudaVersion() { return MissingVersion(); }
