//! The effects of instructions. [`run`] executes those that need more than one lane's registers and do not change the
//! control flow.

mod access;
mod atomic;
pub(crate) mod barrier;
mod bulk;
mod bulk_fill;
pub(crate) mod bulk_store;
pub(crate) mod call;
pub(crate) mod cluster;
mod collective;
mod copy;
mod early;
mod fence;
mod fragment;
mod global;
mod matrix;
pub(crate) mod mbarrier;
mod operand;
mod other_matrix;
pub(crate) mod poison;
mod private;
mod race;
mod register;
mod shared;
mod space;
mod system;
mod traffic;
mod warp_group;
mod wmma;

use crate::exec::state::block_env::BlockEnv;
use crate::exec::state::warp::Warp;
use crate::fault::Checked;
use crate::program::{Op, Register};

/// Executes an instruction for some lanes. It is long because it has an arm for each instruction.
pub(crate) fn run(env: &mut BlockEnv<'_>, warp: &mut Warp, op: &Op, mask: u32) -> Checked<()> {
    let (launch, registers) = (env.launch, &mut warp.registers);
    match op {
        Op::Load(access) => access::load(env, warp, access, mask)?,
        Op::Store(access) => access::store(env, warp, access, mask)?,
        Op::Parameter { offset, access } => {
            private::load_parameter(launch.parameters, warp, access, *offset, mask);
        }
        Op::Atomic(atomic) => atomic::atomic(env, warp, atomic, mask)?,
        Op::Collective { op, members } => collective::collective(launch, warp, op, *members, mask)?,
        Op::LoadMatrix { address, registers, transposed } => {
            matrix::load_matrix(env, warp, *address, registers, *transposed)?;
        }
        Op::StoreMatrix { address, registers, transposed } => {
            matrix::store_matrix(env, warp, *address, registers, *transposed)?;
        }
        Op::Touch(op) => {
            warp.product_fence = false;
            if let Op::Lanes(op, slots) = **op {
                op.run(&mut warp.registers, slots, mask);
            } else {
                run(env, warp, op, mask)?;
            }
        }
        Op::Set { test, slots, target, value } => register::set(registers, *test, *slots, (*target, *value), mask),
        Op::Mma(mma) => {
            matrix::mma(warp, mma);
            env.meter.current().tensor_flops += 2 * 16 * 8 * mma.depth as u64;
        }
        Op::OtherMma(mma) => {
            other_matrix::other_mma(registers, mma);
            env.meter.current().tensor_flops += 2 * 16 * 8 * mma.depth as u64;
        }
        Op::FragmentLoad(access) => wmma::load_fragment(env, warp, access, mask)?,
        Op::FragmentStore(access) => wmma::store_fragment(env, warp, access, mask)?,
        Op::FragmentProduct(product) => {
            wmma::multiply_fragments(registers, product);
            env.meter.current().tensor_flops += 2 * product.shape.iter().product::<usize>() as u64;
        }
        Op::AsyncCopy(copy) => copy::start_copy(env, warp, copy, mask)?,
        Op::AsyncArrive { address, counted } => mbarrier::arrive_after_copies(env, warp, *address, *counted, mask)?,
        Op::AsyncCommit => copy::commit_copies(warp),
        Op::AsyncWait(pending) => copy::wait_copies(env, warp, *pending)?,
        Op::Compare { test, slots, complement, combine } => {
            let combination = register::Combination { complement: *complement, combine: *combine };
            register::compare(registers, *test, *slots, combination, mask);
        }
        Op::Logic3 { slots, table } => register::logic3(registers, *slots, *table, mask),
        Op::InsertField { slots, at, count, wide } => {
            register::insert_field(registers, *slots, (*at, *count), *wide, mask);
        }
        Op::Carry(sum) => register::carry(registers, sum, mask),
        Op::IsSpace(question) => register::is_space(registers, question, mask),
        Op::ClusterArrive { releases } => cluster::arrive(env, warp, *releases, mask)?,
        Op::GridWait => early::wait_for_launches(env, warp, mask),
        Op::Fence { scope } => fence::fence(env, warp, *scope, mask),
        Op::ProxyFence => warp.clock.proxy_fence(mask),
        Op::Mbarrier(mbarrier) => mbarrier::mbarrier(env, warp, mbarrier, mask)?,
        Op::BulkCopy(copy) => bulk::bulk_copy(env, warp, copy, mask)?,
        Op::BulkCommit => bulk_store::commit_stores(warp, mask),
        Op::BulkWait { pending, read } => bulk_store::wait_stores(env, warp, mask, *pending, *read)?,
        Op::ProductFence => warp.product_fence = true,
        Op::Product(product) => warp_group::start_product(env.meter, env.block, warp, product)?,
        Op::ProductCommit => warp_group::commit_products(warp),
        Op::ProductWait(pending) => warp_group::wait_products(launch.program, env.block, warp, *pending),
        Op::Unpack { source, parts } => register::unpack(registers, *source, parts, mask),
        Op::Pack { target, parts } => register::pack(registers, *target, parts, mask),
        Op::Clock(target) => register::broadcast(registers, *target, env.meter.executed, mask),
        Op::ActiveMask(slot) => {
            register::broadcast(registers, Register { slot: *slot, bits: 32 }, mask.into(), mask);
        }
        Op::CallSystem(call) => system::call(env, warp, call, mask)?,
        // The other instructions change the control flow, or do nothing.
        _ => {}
    }
    Ok(())
}
