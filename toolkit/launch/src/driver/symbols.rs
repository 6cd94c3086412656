//! Definitions of the driver API functions that `cust` and this crate link with. Each forwards to the function with its
//! name in the chosen driver.
//!
//! If a driver is too old to have a function, calls to it fail, but loading the driver does not.

#![allow(non_snake_case, reason = "the driver's names")]
#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use super::Driver;
use crate::code::result_of;
use cust::sys::*;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the chosen driver, looked up at its first call.
struct Function {
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicPtr::new(null_mut()) }
    }

    fn address(&self) -> Result<*const c_void, CUresult> {
        let cached = self.address.load(Ordering::Relaxed);
        if !cached.is_null() {
            return Ok(cached);
        }
        let driver = Driver::chosen().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        let address = driver.lookup(self.name).ok_or(CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        self.address.store(address.cast_mut(), Ordering::Relaxed);
        Ok(address)
    }
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            // Does not compile unless callers compile against the same signature.
            const _: unsafe extern "C" fn($($ty),*) -> CUresult = cust::sys::$name;
            static FUNCTION: Function = Function::new(stringify!($name));
            match FUNCTION.address() {
                Ok(address) => {
                    // SAFETY: the driver's function of this name has this signature.
                    let function = unsafe {
                        std::mem::transmute::<*const c_void, unsafe extern "C" fn($($ty),*) -> c_uint>(address)
                    };
                    // SAFETY: the caller keeps to the contract in the driver's documentation.
                    result_of(unsafe { function($($arg),*) })
                }
                Err(code) => code,
            }
        }
    )*};
}

forward! {
    // Initialisation and errors
    fn cuGetErrorString(error: CUresult, text: *mut *const c_char);
    fn cuGetErrorName(error: CUresult, text: *mut *const c_char);
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(driver_version: *mut c_int);

    // Devices
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceCanAccessPeer(can_access: *mut c_int, device: CUdevice, peer: CUdevice);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);

    // Contexts
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxPushCurrent_v2(context: CUcontext);
    fn cuCtxPopCurrent_v2(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetFlags(flags: *mut c_uint);
    fn cuCtxSynchronize();
    fn cuCtxSetLimit(limit: CUlimit, value: usize);
    fn cuCtxGetLimit(value: *mut usize, limit: CUlimit);
    fn cuCtxGetCacheConfig(config: *mut CUfunc_cache);
    fn cuCtxSetCacheConfig(config: CUfunc_cache);
    fn cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
    fn cuCtxSetSharedMemConfig(config: CUsharedconfig);
    fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    fn cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);

    // Modules, functions, launches
    fn cuModuleLoad(module: *mut CUmodule, file: *const c_char);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
        option_values: *mut *mut c_void,
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleGetGlobal_v2(pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
    fn cuLinkCreate_v2(
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
        state_out: *mut CUlinkState,
    );
    fn cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
    );
    fn cuLinkComplete(state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize);
    fn cuLinkDestroy(state: CUlinkState);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
    fn cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig);
    fn cuLaunchKernel(
        f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
        kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user_data: *mut c_void);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize,
    );
    fn cuOccupancyMaxPotentialBlockSize(
        min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
        block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int,
    );
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        dynamic_smem_size: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int,
    );

    // Memory
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytesize: usize);
    fn cuMemFree_v2(pointer: CUdeviceptr);
    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize);
    fn cuMemFreeHost(p: *mut c_void);
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint);
    fn cuMemHostGetDevicePointer_v2(pointer: *mut CUdeviceptr, p: *mut c_void, flags: c_uint);
    fn cuMemAllocManaged(pointer: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint);
    fn cuMemHostUnregister(p: *mut c_void);
    fn cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
    fn cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
    fn cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
    fn cuMemcpyHtoA_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize);
    fn cuMemcpyAtoH_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize);
    fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
    fn cuMemsetD8_v2(dst_device: CUdeviceptr, value: c_uchar, count: usize);
    fn cuMemsetD16_v2(dst_device: CUdeviceptr, value: c_ushort, count: usize);
    fn cuMemsetD32_v2(dst_device: CUdeviceptr, value: c_uint, count: usize);
    fn cuMemsetD8Async(dst_device: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    fn cuMemsetD16Async(dst_device: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
    fn cuMemsetD32Async(dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    fn cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
    fn cuMemAllocAsync(pointer: *mut CUdeviceptr, bytesize: usize, stream: CUstream);
    fn cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream);
    fn cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);

    // Streams and events
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamIsCapturing(stream: CUstream, capture_status: *mut CUstreamCaptureStatus);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

    // Graphs
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphAddKernelNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS,
    );
    fn cuGraphKernelNodeGetParams(node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
    fn cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
    fn cuGraphInstantiate_v2(
        graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char,
        buffer_size: usize,
    );
    fn cuGraphLaunch(graph_exec: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(graph_exec: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphExecUpdate(
        graph_exec: CUgraphExec, graph: CUgraph, error_node_out: *mut CUgraphNode,
        update_result_out: *mut CUgraphExecUpdateResult,
    );
    fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);

    // Arrays, textures, surfaces, external memory
    fn cuArrayDestroy(array: CUarray);
    fn cuArray3DCreate_v2(handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
    fn cuArray3DGetDescriptor_v2(array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
    fn cuImportExternalMemory(
        ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    );
    fn cuExternalMemoryGetMappedBuffer(
        dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    );
    fn cuDestroyExternalMemory(ext_mem: CUexternalMemory);
    fn cuTexObjectCreate(
        tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC, tex_desc: *const CUDA_TEXTURE_DESC,
        res_view_desc: *const CUDA_RESOURCE_VIEW_DESC,
    );
    fn cuTexObjectDestroy(tex_object: CUtexObject);
    fn cuTexObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject);
    fn cuTexObjectGetResourceViewDesc(res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject);
    fn cuSurfObjectCreate(surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC);
    fn cuSurfObjectDestroy(surf_object: CUsurfObject);
    fn cuSurfObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject);
}
