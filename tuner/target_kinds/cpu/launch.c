// Has the parallel loops of a library run on the threads of another library's OpenMP, in place of TVM's pool.
//
// TVM's compiled code starts a parallel loop and waits in it through pointers that every library has of its own,
// __TVMBackendParallelLaunch and __TVMBackendParallelBarrier. The function main_threads(parallel, barrier, number, count, most,
// limit) lets them point into this file. The first five are addresses of functions that libgomp has, and LLVM's and Intel's
// OpenMP as well: GOMP_parallel, GOMP_barrier, omp_get_thread_num, omp_get_num_threads and omp_get_max_threads; a loop has at
// most `limit` threads. Compiled as C or as C++, as the linker's name has it; includes nothing.

#ifdef __cplusplus
extern "C" {
#endif

// What TVM gives each part of a loop. It divides the loop by `parts`; `pool` is what its own barrier waits with.
typedef struct {
  void* pool;
  int parts;
} Environment;
typedef int (*Part)(int part, Environment* environment, void* data);

// An argument or a result of a function that is called through TVM's FFI.
typedef struct {
  int type;
  int padding;
  long long value;
} Any;

typedef struct {
  Part run;
  void* data;
  int failed;
} Loop;

// Of a library that needs them, or nowhere.
extern int (*__TVMBackendParallelLaunch)(Part, void*, int) __attribute__((weak));
extern int (*__TVMBackendParallelBarrier)(int, Environment*) __attribute__((weak));

static int (*launch_in_pool)(Part, void*, int);
static int (*wait_in_pool)(int, Environment*);
static void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
static void (*barrier)(void);
static int (*number)(void);
static int (*count)(void);
static int (*most)(void);
static int limit;

// A part for each thread of the team, which may be smaller than what was asked for: where parts wait for each other, all run.
static void member(void* given) {
  Loop* loop = (Loop*)given;
  Environment environment = {0, count()};
  if (loop->run(number(), &environment, loop->data)) __atomic_store_n(&loop->failed, 1, __ATOMIC_RELAXED);
}

static int launch(Part run, void* data, int parts) {
  int threads = most() < limit ? most() : limit;
  if (parts) return launch_in_pool(run, data, parts);  // TVM asks for all threads, by 0
  if (threads > 1) {
    Loop loop = {run, data, 0};
    parallel(member, &loop, (unsigned)threads, 0);
    return loop.failed ? -1 : 0;
  }
  Environment alone = {0, 1};
  return run(0, &alone, data);
}

static int wait(int part, Environment* environment) {
  if (environment->pool) return wait_in_pool(part, environment);
  if (environment->parts > 1) barrier();
  return 0;
}

int __tvm_ffi_main_threads(void* self, const Any* arguments, int taken, Any* result) {
  (void)self;
  (void)taken;
  parallel = (void (*)(void (*)(void*), void*, unsigned, unsigned))arguments[0].value;
  barrier = (void (*)(void))arguments[1].value;
  number = (int (*)(void))arguments[2].value;
  count = (int (*)(void))arguments[3].value;
  most = (int (*)(void))arguments[4].value;
  limit = (int)arguments[5].value;
  if (&__TVMBackendParallelLaunch && __TVMBackendParallelLaunch != launch) {
    launch_in_pool = __TVMBackendParallelLaunch;
    __TVMBackendParallelLaunch = launch;
  }
  if (&__TVMBackendParallelBarrier && __TVMBackendParallelBarrier != wait) {
    wait_in_pool = __TVMBackendParallelBarrier;
    __TVMBackendParallelBarrier = wait;
  }
  result->type = 0;
  result->value = 0;
  return 0;
}

#ifdef __cplusplus
}
#endif
