/* A plugin that has no device, for tests of what mlxcel says then. MAJOR and MINOR come from the command line. */
#include <stddef.h>
#include <string.h>

typedef struct { size_t size; void *ext; const void *error; const char *message; size_t message_size; } ErrorMessage;
typedef struct { size_t size; void *ext; int major, minor; } Version;
typedef void *(*Function)(void *);
static struct { size_t size; void *ext; Version version; Function functions[118]; } api;

static void *nothing(void *arguments) { (void)arguments; return NULL; }
static void *refuse(void *arguments) { (void)arguments; return &api; }
static void *message(void *arguments) {
  ErrorMessage *m = arguments;
  m->message = "no CUDA-capable device is detected";
  m->message_size = strlen(m->message);
  return NULL;
}

const void *GetPjrtApi(void) {
  api.size = sizeof api;
  api.version.size = sizeof api.version;
  api.version.major = MAJOR;
  api.version.minor = MINOR;
  for (int i = 0; i < 118; i++) api.functions[i] = nothing;
  api.functions[1] = message;
  api.functions[10] = refuse;
  return &api;
}
