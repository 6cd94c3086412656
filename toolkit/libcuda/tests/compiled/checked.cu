#include <assert.h>
#include <stdio.h>

extern "C" __global__ void checked(const int* data, int limit) {
    int i = threadIdx.x;
    printf("%d: %s %6.2f %%\n", i, "half is", data[i] * 0.5);
    assert(data[i] < limit);
}
