// What Microsoft links into every DLL and exports from none: initialisers, statics that threads share, thread-locals, and
// allocation. The shim stays for the life of the process, so nothing is taken down but what belongs to threads.

#include <math.h>
#include <stdlib.h>
#include <windows.h>

#include <new>

extern "C" {

// The compiler refers to it where floating point is used.
int _fltused = 0x9875;

// Pointers to initialisers lie between these: the linker sorts what comes after the dollar.
typedef void(__cdecl* Initialiser)();
#pragma section(".CRT$XCA", long, read)
#pragma section(".CRT$XCZ", long, read)
#pragma section(".CRT$XDA", long, read)
#pragma section(".CRT$XDZ", long, read)
__declspec(allocate(".CRT$XCA")) Initialiser first_initialiser = nullptr;
__declspec(allocate(".CRT$XCZ")) Initialiser last_initialiser = nullptr;
__declspec(allocate(".CRT$XDA")) Initialiser first_of_thread = nullptr;
__declspec(allocate(".CRT$XDZ")) Initialiser last_of_thread = nullptr;

static void initialise(Initialiser* before, Initialiser* end) {
  for (Initialiser* each = before + 1; each < end; each++)
    if (*each) (*each)();
}

BOOL WINAPI _DllMainCRTStartup(HINSTANCE, DWORD reason, LPVOID) {
  if (reason == DLL_PROCESS_ATTACH) initialise(&first_initialiser, &last_initialiser);
  return TRUE;
}

int __cdecl atexit(void(__cdecl*)()) { return 0; }

// Thread-locals are made when a thread first asks for one, since most threads are older than this library.
struct Destructor {
  void(__cdecl* destroy)();
  Destructor* next;
};
thread_local bool __tls_guard = false;
static thread_local Destructor* destructors = nullptr;

void __cdecl __dyn_tls_on_demand_init() {
  if (__tls_guard) return;
  __tls_guard = true;
  initialise(&first_of_thread, &last_of_thread);
}

void NTAPI __dyn_tls_init(void*, DWORD, void*) {}

int __cdecl __tlregdtor(void(__cdecl* destroy)()) {
  destructors = new Destructor{destroy, destructors};
  return 0;
}

static void NTAPI at_thread(void*, DWORD reason, void*) {
  if (reason != DLL_THREAD_DETACH && reason != DLL_PROCESS_DETACH) return;
  while (Destructor* now = destructors) {
    destructors = now->next;
    now->destroy();
    delete now;
  }
}

// Where the loader finds them: <https://learn.microsoft.com/en-us/windows/win32/debug/pe-format#the-tls-section>.
#pragma section(".CRT$XLA", long, read)
#pragma section(".CRT$XLC", long, read)
#pragma section(".CRT$XLZ", long, read)
#pragma section(".tls", long, read, write)
#pragma section(".tls$ZZZ", long, read, write)
__declspec(allocate(".CRT$XLA")) PIMAGE_TLS_CALLBACK first_callback = nullptr;
__declspec(allocate(".CRT$XLC")) PIMAGE_TLS_CALLBACK callback = at_thread;
__declspec(allocate(".CRT$XLZ")) PIMAGE_TLS_CALLBACK last_callback = nullptr;
__declspec(allocate(".tls")) char _tls_start = 0;
__declspec(allocate(".tls$ZZZ")) char _tls_end = 0;
unsigned long _tls_index = 0;
extern const IMAGE_TLS_DIRECTORY64 _tls_used;
const IMAGE_TLS_DIRECTORY64 _tls_used = {
    (ULONGLONG)&_tls_start, (ULONGLONG)&_tls_end, (ULONGLONG)&_tls_index, (ULONGLONG)(&first_callback + 1), 0, 0};

// Statics of functions. Code compares a static's number with its thread's: 0 is not begun, -1 in work, and one that was
// made has the number that the count had then, which begins at the least.
static SRWLOCK lock = SRWLOCK_INIT;
static CONDITION_VARIABLE changed = CONDITION_VARIABLE_INIT;
static int count = INT_MIN;
thread_local int _Init_thread_epoch = INT_MIN;

void __cdecl _Init_thread_header(int* number) {
  AcquireSRWLockExclusive(&lock);
  while (*number == -1) SleepConditionVariableSRW(&changed, &lock, INFINITE, 0);
  if (*number == 0)
    *number = -1;
  else
    _Init_thread_epoch = count;
  ReleaseSRWLockExclusive(&lock);
}

static void end_static(int* number, bool is_made) {
  AcquireSRWLockExclusive(&lock);
  *number = is_made ? ++count : 0;
  _Init_thread_epoch = count;
  ReleaseSRWLockExclusive(&lock);
  WakeAllConditionVariable(&changed);
}

void __cdecl _Init_thread_footer(int* number) { end_static(number, true); }
void __cdecl _Init_thread_abort(int* number) { end_static(number, false); }

// The C library has it for doubles only.
__attribute__((no_builtin)) float __cdecl ldexpf(float x, int exponent) { return static_cast<float>(ldexp(x, exponent)); }

// Descriptions of types point to a table of the one virtual function that they have, which nobody calls.
static void no_destructor() {}
extern void (*const type_info_table[1])() __asm__("??_7type_info@@6B@");
void (*const type_info_table[1])() = {no_destructor};

}  // extern "C"

// The runtime's own, so that what one library allocates another may free.
void* __cdecl operator new(size_t size) {
  if (void* made = malloc(size ? size : 1)) return made;
  throw std::bad_alloc();
}
void __cdecl operator delete(void* it) noexcept { free(it); }
void __cdecl operator delete(void* it, size_t) noexcept { free(it); }
