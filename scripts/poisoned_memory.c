// A layer above the CUDA driver's library that fills what is allocated, on the GPU and page-locked on the host, with bytes
// of 0xff: floats are NaN and integers -1 until something writes them. So whatever reads memory that nothing has written
// computes wrong results, whichever instruction wrote the rest. compute-sanitizer's initcheck does not see copies by
// tensor map.
//
// It is loaded in the place of libcuda.so.1, beside a link libcuda_real.so to the driver's own library, in which all other
// names are found. scripts/gpu_bundle.sh compiles it, poisoned.sh of a bundle sets up both. At the end of the process it
// says on stderr what it has filled.
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
typedef void *stream;

static atomic_ullong allocations, bytes_in_all;

// A function of the driver; without it nothing can go on.
static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen("libcuda_real.so", RTLD_NOW);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "poisoned memory: no %s in libcuda_real.so\n", name);
        abort();
    }
    return found;
}

static void count(size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    atomic_fetch_add(&bytes_in_all, bytes);
}

// Fills on a stream of its own, which waits for no other and is waited for.
static int fill(address at, size_t bytes) {
    int (*create)(stream *, unsigned) = real("cuStreamCreate");
    int (*set)(address, unsigned char, size_t, stream) = real("cuMemsetD8Async");
    int (*wait)(stream) = real("cuStreamSynchronize"), (*destroy)(stream) = real("cuStreamDestroy_v2");
    stream own;
    int status = create(&own, 1);
    if (status) return status;
    status = set(at, 0xff, bytes, own);
    if (!status) status = wait(own);
    const int destroyed = destroy(own);
    return status ? status : destroyed;
}

int cuMemAlloc_v2(address *at, size_t bytes) {
    int (*alloc)(address *, size_t) = real("cuMemAlloc_v2");
    const int status = alloc(at, bytes);
    if (status) return status;
    count(bytes);
    return fill(*at, bytes);
}

int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    int (*alloc)(void **, size_t, unsigned) = real("cuMemHostAlloc");
    const int status = alloc(at, bytes, flags);
    if (status) return status;
    count(bytes);
    memset(*at, 0xff, bytes);
    return 0;
}

__attribute__((destructor)) static void say(void) {
    fprintf(stderr, "poisoned memory: %llu allocations, %.1f MiB\n", allocations, bytes_in_all / 1048576.0);
}
