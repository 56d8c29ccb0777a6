// A library that claims to be the CUDA backend of another version of Stagecoach.
extern "C" const char* StagecoachCudaVersion();
extern "C" const char* StagecoachCudaVersion() { return "Stagecoach 0.0.1, backend 0"; }
