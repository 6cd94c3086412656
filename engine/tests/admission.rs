//! Admission of new requests.

#![allow(clippy::unwrap_used)] // a failed unwrap is a failed test

use engine::SamplingParams;
use engine::tools::group::SequenceGroup;
use engine::tools::kv::BlockPool;
use engine::tools::scheduler::{Scheduler, SchedulerOptions};

#[test]
fn held_new_requests_wait_unless_no_group_runs() {
    let pool = BlockPool::new(100, 4);
    let options = SchedulerOptions { max_num_seqs: 10, max_batch_tokens: 100, ..SchedulerOptions::default() };
    let mut scheduler = Scheduler::new(pool.clone(), BlockPool::new(0, 4), 1, options);
    let group = |id| SequenceGroup::new(id, vec![1, 2, 3], SamplingParams::default(), 0, 10, &[], &pool);
    assert_eq!(scheduler.next_arrival(), None);
    scheduler.add(group(0));
    scheduler.add(group(1));
    assert!(scheduler.next_arrival().is_some());
    assert_eq!(scheduler.schedule(true).admitted.len(), 2, "no group runs");
    scheduler.add(group(2));
    assert_eq!(scheduler.schedule(true).admitted.len(), 0);
    assert_eq!(scheduler.schedule(false).admitted.len(), 1);
}
