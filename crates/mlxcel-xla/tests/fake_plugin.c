/* A plugin that has no device, or, if PLATFORM is given, one that is none, for tests of what mlxcel says then. MAJOR,
 * MINOR, PLATFORM, DEVICES and LOG, the file where its calls are told, come from the command line. */
#include <stddef.h>
#include <stdio.h>
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

#ifdef PLATFORM
typedef struct { size_t size; void *ext; const char *name; size_t name_size; int kind; long value[2]; } Option;
typedef struct { size_t size; void *ext; const Option *options; size_t count; } Create;
typedef struct { size_t size; void *ext, *client; const char *text; size_t text_size; } ClientText;
typedef struct { size_t size; void *ext, *client, **devices; size_t count; } Devices;
static void *devices[1] = {&api};

static void tell(const char *what, size_t size) {
  FILE *log = fopen(LOG, "a");
  fprintf(log, "%.*s\n", (int)size, what);
  fclose(log);
}
static void *create(void *arguments) {
  Create *c = arguments;
  tell("created", 7);
  for (size_t i = 0; i < c->count; i++) tell(c->options[i].name, c->options[i].name_size);
  return NULL;
}
static void *destroy(void *arguments) { (void)arguments; tell("destroyed", 9); return NULL; }
static void *platform(void *arguments) {
  ClientText *t = arguments;
  t->text = PLATFORM;
  t->text_size = strlen(PLATFORM);
  return NULL;
}
static void *list(void *arguments) {
  Devices *d = arguments;
  d->devices = devices;
  d->count = DEVICES;
  return NULL;
}
#endif

const void *GetPjrtApi(void) {
  api.size = sizeof api;
  api.version.size = sizeof api.version;
  api.version.major = MAJOR;
  api.version.minor = MINOR;
  for (int i = 0; i < 118; i++) api.functions[i] = nothing;
  api.functions[1] = message;
  api.functions[10] = refuse;
#ifdef PLATFORM
  api.functions[10] = create;
  api.functions[11] = destroy;
  api.functions[12] = platform;
  api.functions[16] = list;
#endif
  return &api;
}
