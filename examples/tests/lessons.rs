//! Runs every lesson on the emulator. Checks the results, the costs on the ladders, and the faults of the exercises.

#![allow(clippy::unwrap_used, missing_docs)]

use examples::{Lesson, PTX, entry, listing};
use launch::Driver;

// The lessons are programs. The tests call everything but their `main`.
#[allow(dead_code)]
#[path = "../src/attention.rs"]
mod attention;
#[allow(dead_code)]
#[path = "../src/exercises.rs"]
mod exercises;
#[allow(dead_code)]
#[path = "../src/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../src/reduction.rs"]
mod reduction;
#[allow(dead_code)]
#[path = "../src/saxpy.rs"]
mod saxpy;
#[allow(dead_code)]
#[path = "../src/softmax.rs"]
mod softmax;

fn lesson() -> Lesson {
    Lesson::new(Driver::emulator().unwrap()).unwrap()
}

/// Runs a lesson that must succeed, and returns its text.
fn text_of(run: impl FnOnce(&mut Lesson) -> examples::Result<()>) -> String {
    let mut lesson = lesson();
    run(&mut lesson).unwrap();
    lesson.text().to_owned()
}

#[test]
fn neighbours_share_sectors() {
    let text = text_of(saxpy::run);
    assert!(text.contains("in 1512 sectors (at best 1512"), "{text}");
    assert!(text.contains("in 12096 sectors (at best 1512"), "{text}");
    assert!(text.ends_with("the last is 8063\n"), "{text}");
}

#[test]
fn sums_differ_in_bank_conflicts_and_barriers() {
    let text = text_of(reduction::run);
    let conflicts = "passes, 1680 of them for bank conflicts";
    assert!(text.contains(conflicts) && text.matches("passes, 0 of them").count() == 2, "{text}");
    assert!(text.matches("passed: 144").count() == 2 && text.contains("passed: 16\n"), "{text}");
    assert!(text.ends_with("the sum of 4000 elements is 31970: all three kernels found it\n"), "{text}");
}

#[test]
fn softmax_kernels_request_the_bytes_that_the_lesson_states() {
    let text = text_of(softmax::run);
    for bytes in [65536, 49152, 32768] {
        assert!(text.contains(&format!("global memory: {bytes} bytes")), "{text}");
    }
}

#[test]
fn each_rung_of_matmul_saves_work() {
    let reports = matmul::run(&mut lesson()).unwrap();
    let [naive, tiled, copied, tensor] = [0, 1, 2, 3].map(|rung: usize| reports[rung].total);
    assert!(9 * tiled.sectors < naive.sectors && tiled.instructions < naive.instructions);
    assert!(copied.sectors == tiled.sectors && copied.wavefronts < tiled.wavefronts);
    assert!(10 * tensor.instructions < tiled.instructions && 10 * tensor.wavefronts < tiled.wavefronts);
    assert_eq!(tensor.tensor_flops, 2 * 128 * 128 * 128);
    assert!(reports.iter().all(|report| report.total.bank_conflicts() == 0));
}

#[test]
fn attention_rungs_cost_as_the_lesson_states() {
    let reports = attention::run(&mut lesson()).unwrap();
    let [contiguous, paged, v1, v2, own] = [0, 1, 2, 3, 4].map(|rung: usize| reports[rung].total);
    // Paging adds at most a fifth.
    assert!(contiguous.instructions < paged.instructions);
    assert!(5 * paged.instructions < 6 * contiguous.instructions);
    assert!(2 * v1.instructions < paged.instructions);
    assert!(v1.instructions < v2.instructions && 5 * v2.instructions < 6 * v1.instructions);
    // Four query heads share keys and values, and this engine's kernel reads these once.
    assert!(3 * own.sectors < v1.sectors && 3 * own.instructions < v1.instructions);
    assert!(own.tensor_flops > 0 && v1.tensor_flops == 0);
}

#[test]
fn lessons_give_the_same_results_in_other_orders_of_warps_and_blocks() {
    for seed in 1..4 {
        let mut lesson = lesson();
        lesson.gpu.seed(seed);
        saxpy::run(&mut lesson).unwrap();
        reduction::run(&mut lesson).unwrap();
        softmax::run(&mut lesson).unwrap();
        matmul::run(&mut lesson).unwrap();
        exercises::run(&mut lesson).unwrap();
    }
}

#[test]
fn exercises_fail_with_the_faults_in_their_answers() {
    let text = text_of(exercises::run);
    assert_eq!(text.matches("the result equals the host's").count(), 3, "{text}");
    for (name, fault, words) in [
        ("barrier", "SharedRace in kernel `differences`", "exercises.rs:"),
        ("wait", "AsyncRegion in kernel `reverse_copied`", "a wait is missing"),
        ("fence", "GlobalRace in kernel `sum_by_last`", "no fence and atomic between"),
    ] {
        let mut lesson = lesson();
        lesson.without = Some(name.to_owned());
        exercises::run(&mut lesson).unwrap();
        let text = lesson.text();
        assert!(text.contains(fault) && text.contains(words), "{text}");
    }
    let mut lesson = lesson();
    lesson.without = Some("everything".to_owned());
    assert!(exercises::run(&mut lesson).unwrap_err().to_string().contains("barrier, wait, fence"));
}

#[test]
fn listings_show_rust_lines_next_to_their_ptx() {
    let mut lesson = lesson().with_listing();
    saxpy::run(&mut lesson).unwrap();
    let line = |part: &str| lesson.text().lines().find(|line| line.contains(part)).unwrap().to_owned();
    assert!(line("setp.lt.u32").contains("if i < n {"), "{}", lesson.text());
    assert!(line("ld.global").contains("+= a * *x.add(i as usize)"), "{}", lesson.text());
    assert!(listing(PTX, "no_such_kernel").is_none() && entry(PTX, "sax").is_none());
}
