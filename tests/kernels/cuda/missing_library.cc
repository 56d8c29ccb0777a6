// The library that backend_that_misses_a_library.cc is linked to.
extern "C" const char* MissingVersion();
extern "C" const char* MissingVersion() { return ""; }
