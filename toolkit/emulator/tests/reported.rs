//! Forms that users reported as missing, under the names in the reports. Each is now accepted, or refused by name
//! without affecting the rest of its module. `ptxas` 13.5 accepts all of them.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use emulator::{Arg, EmulatedDevice, FaultKind, PtxModule};

/// The name, the parameter and the body of a kernel.
struct Reported(&'static str, &'static str, &'static str);

const POINTER: &str = ".param .u64 p";

#[rustfmt::skip]
const ACCEPTED: [Reported; 50] = [
    Reported("add_cc", POINTER, "add.cc.u32 %r0, %r1, %r2; addc.u32 %r3, %r4, %r5;"),
    Reported("add_rz", POINTER, "add.rz.f32 %f0, %f1, %f2;"),
    Reported("add_sat_f16", POINTER, "add.sat.f16 %h0, %h1, %h2;"),
    Reported("bar_red", POINTER, "bar.red.popc.u32 %r0, 0, %p0;"),
    Reported("barrier_cluster", POINTER, "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"),
    Reported("bfi_b64", POINTER, "bfi.b64 %d0, %d1, %d2, 8, 8;"),
    Reported("bfind_shiftamt", POINTER, "bfind.shiftamt.u32 %r0, %r1;"),
    Reported("bmsk", POINTER, "bmsk.clamp.b32 %r0, %r1, %r2;"),
    Reported("brkpt", POINTER, "brkpt;"),
    Reported("callprototype", POINTER, "proto: .callprototype (.param .b32 _) _ (.param .b32 _);"),
    Reported("cluster_ctarank", POINTER, "mov.u32 %r0, %cluster_ctarank;"),
    Reported("cp_async_bulk_prefetch", POINTER, "cp.async.bulk.prefetch.L2.global [%d0], 128;"),
    Reported("cp_async_mbarrier_arrive", POINTER, "cp.async.mbarrier.arrive.noinc.shared.b64 [sm];"),
    Reported("createpolicy", POINTER, "createpolicy.fractional.L2::evict_first.b64 %d0, 1.0;"),
    Reported("cvt_fp8", POINTER, "cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;"),
    Reported("cvt_rni_f16", POINTER, "cvt.rni.f16.f16 %h0, %h1;"),
    Reported("cvt_rp_f32_s32", POINTER, "cvt.rp.f32.s32 %f0, %r0;"),
    Reported("cvt_rz_f32_f64", POINTER, "cvt.rz.f32.f64 %f0, %g0;"),
    Reported("cvt_s32_f64", POINTER, "cvt.rzi.s32.f64 %r0, %g0;"),
    Reported("discard", POINTER, "discard.global.L2 [%d0], 128;"),
    Reported("dp4a", POINTER, "dp4a.s32.s32 %r0, %r1, %r2, %r3;"),
    Reported("fma_rm", POINTER, "fma.rm.f32 %f0, %f1, %f2, %f3;"),
    Reported("isspacep", POINTER, "isspacep.shared %p0, %d0;"),
    Reported("ld_cache_hint", POINTER, "ld.global.L2::cache_hint.u32 %r0, [%d0], %d1;"),
    Reported("ldmatrix_num_first", POINTER,
        "mov.u32 %r4, sm; ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%r0,%r1,%r2,%r3}, [%r4];"),
    Reported("ldmatrix_trans_first", POINTER,
        "mov.u32 %r4, sm; ldmatrix.sync.aligned.trans.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, [%r4];"),
    Reported("mapa", POINTER, "mapa.shared::cluster.u32 %r0, %r1, 0;"),
    Reported("match_all", POINTER, "match.all.sync.b32 %r0|%p0, %r1, -1;"),
    Reported("max_s16x2", POINTER, "max.s16x2 %r0, %r1, %r2;"),
    Reported("mbarrier_expect_tx_plain", POINTER, "mbarrier.expect_tx.shared::cta.b64 [sm], 16;"),
    Reported("mbarrier_remote_arrive", POINTER, "mbarrier.arrive.shared::cluster.b64 _, [%r0];"),
    Reported("mma_fp8", POINTER,
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0,%f1,%f2,%f3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%f0,%f1,%f2,%f3};"),
    Reported("mma_s8", POINTER,
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0,%r1,%r2,%r3}, {%r4,%r5,%r6,%r7}, {%r8,%r9}, {%r0,%r1,%r2,%r3};"),
    Reported("mma_tf32", POINTER,
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f1,%f2,%f3};"),
    Reported("multimem_pmevent", POINTER, "pmevent 1;"),
    Reported("param_address", ".param .align 64 .b8 p[128]", "mov.b64 %d0, p; cvta.param.u64 %d1, %d0; ld.u32 %r0, [%d1];"),
    Reported("param_address_32", ".param .align 64 .b8 p[128]",
        "mov.b32 %r0, p; cvt.u64.u32 %d0, %r0; cvta.param.u64 %d1, %d0;"),
    Reported("param_by_register", ".param .align 8 .b8 p[16]", "mov.b64 %d0, p; ld.param.u32 %r0, [%d0+4];"),
    Reported("prmt_mode", POINTER, "prmt.b32.f4e %r0, %r1, %r2, %r3;"),
    Reported("rcp_approx_f64", POINTER, "rcp.approx.ftz.f64 %g0, %g1;"),
    Reported("sad", POINTER, "sad.u32 %r0, %r1, %r2, %r3;"),
    Reported("set_f16", POINTER, "set.eq.f16.f16 %h0, %h1, %h2;"),
    Reported("set_f16x2", POINTER, "set.gt.f16x2.f16x2 %r0, %r1, %r2;"),
    Reported("shfl64", POINTER, "shfl.sync.idx.b32 %r0, %r1, 0, 31, -1;"),
    Reported("slct", POINTER, "slct.f32.s32 %f0, %f1, %f2, %r0;"),
    Reported("stmatrix", POINTER, "mov.u32 %r4, sm; stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r0,%r1,%r2,%r3};"),
    Reported("testp", POINTER, "testp.infinite.f32 %p0, %f0;"),
    Reported("vote_activemask", POINTER, "activemask.b32 %r0;"),
    Reported("wgmma_scale_d_0", POINTER,
        "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %d0, %d1, 0, 1, 1, 0, 0;"),
    Reported("wmma", POINTER,
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%d0], %r8;"),
];

#[rustfmt::skip]
const REFUSED: [Reported; 4] = [
    Reported("atom_v4_f32", POINTER, "atom.global.add.v4.f32 {%f0,%f1,%f2,%f3}, [%d0], {%f4,%f5,%f6,%f7};"),
    Reported("fence_proxy_tensormap", POINTER, "fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;"),
    Reported("red_async_bulk", POINTER, "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r0], 16;"),
    Reported("st_async", POINTER, "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r0], %r1, [%r2];"),
];

/// One module with a kernel for each report. `.reg.b32` without a space was one of the reports.
fn module() -> PtxModule {
    let kernels: String = ACCEPTED
        .iter()
        .chain(&REFUSED)
        .map(|Reported(name, parameter, statements)| {
            format!(
                ".visible .entry {name}({parameter}) {{
                 .reg .pred %p<4>; .reg .b16 %h<8>; .reg.b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .f64 %g<8>;
                 .shared .align 128 .b8 sm[1024];
                 {statements}
                 ret; }}\n"
            )
        })
        .collect();
    PtxModule::parse(&format!(".version 8.6\n.target sm_90a\n.address_size 64\n{kernels}")).unwrap()
}

#[test]
fn reported_forms_are_accepted() {
    let module = module();
    let errors: Vec<String> = ACCEPTED
        .iter()
        .filter_map(|Reported(name, ..)| Some(format!("{name}: {}", module.entry(name).unwrap().check().err()?)))
        .collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

#[test]
fn unsupported_forms_are_refused_by_name() {
    let module = module();
    for Reported(name, _, statement) in REFUSED {
        let error = module.entry(name).unwrap().check().unwrap_err().to_string();
        let opcode = statement.split(' ').next().unwrap();
        assert!(error.contains(&format!("`{opcode}` in `{name}`")), "{error}");
    }
}

/// Ordinary instructions change the sums of a product that go into the next product. A second `wgmma.fence` must come
/// between.
#[test]
fn changed_sums_need_another_fence() {
    let product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %d0, %d0, 1, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
    let kernel = |fence: &str| {
        format!(
            ".version 8.6\n.target sm_90a\n.address_size 64
             .visible .entry k(.param .u64 out) {{
             .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .f32 %f<8>; .shared .align 1024 .b8 sm[4096];
             mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 5; mov.u32 %r2, sm; add.s32 %r2, %r2, %r1; mov.b32 %r3, 0x3c003c00;
             st.shared.v4.b32 [%r2], {{%r3,%r3,%r3,%r3}}; st.shared.v4.b32 [%r2+16], {{%r3,%r3,%r3,%r3}};
             fence.proxy.async.shared::cta; bar.sync 0;
             mov.b64 %d0, 0x0000000800080000; mov.u32 %r4, sm; shr.u32 %r4, %r4, 4; cvt.u64.u32 %d1, %r4;
             or.b64 %d0, %d0, %d1;
             mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
             wgmma.fence.sync.aligned; {product}
             add.f32 %f0, %f0, 0f3F800000; add.f32 %f1, %f1, 0f3F800000;
             {fence} {product}
             ld.param.u64 %d2, [out]; mul.wide.u32 %d3, %r0, 4; add.s64 %d2, %d2, %d3; st.global.f32 [%d2], %f0;
             ret; }}"
        )
    };
    let run = |fence| {
        let mut device = EmulatedDevice::new();
        let out = device.alloc(128 * 4);
        let module = PtxModule::parse(&kernel(fence)).unwrap();
        let report = device.launch(&module, "k", [1; 3], [128, 1, 1], 0, &[Arg::Ptr(out)]);
        report.map(|_| device.read(out, 4).unwrap().to_vec())
    };
    // Two products of 16 ones each, plus the 1 that was added between them.
    assert_eq!(run("wgmma.fence.sync.aligned;").unwrap(), 33f32.to_le_bytes());
    let fault = run("").unwrap_err();
    println!("{fault}");
    assert_eq!(fault.kind, FaultKind::AsyncRegion);
}
