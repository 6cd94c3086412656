//! The paper's other figures, on short traces.

use engine::Preemption;
use lab::figures::{searches, workloads};
use lab::laboratory::{Curve, Lab};
use simulator::admission::Reservation::{Max, Oracle, Pow2};
use simulator::beam_record::BeamRecord;
use simulator::cost::{StepCost, StepLoad};
use simulator::deployment::{LLAMA_13B, OPT_13B};
use simulator::efficiency::PAPER_HOST;
use simulator::price;
use simulator::request::Method;
use simulator::server::{MAX_NUM_SEQS, SimulatedServer, Swapping};
use simulator::system::System;
use simulator::traces::{ALPACA_LIKE, PublishedLengths, SHAREGPT_LIKE, TraceWorkload};

const NONE: PublishedLengths<'_> = PublishedLengths { sharegpt: None, alpaca: None };
const LAB: Lab<'_> = Lab { seed: 1, seconds: 120.0, published: NONE, progress: &|_| {} };

fn rates(curves: &[Curve], beam_record: &BeamRecord) -> Vec<f64> {
    LAB.sustained(curves, beam_record).unwrap().iter().map(|found| found.rate).collect()
}

/// Figure 14: beam search gains more over Orca (Oracle) than a single output does, and parallel sampling does not. With
/// a host as slow as the paper's and as many sequences as fit, beam search gains the paper's factor of 2.3.
#[test]
#[ignore = "takes several seconds; a part of `.ci/run nightly`"]
fn the_gain_grows_with_sharing() {
    let gain_on = |host, max_num_seqs, method: Method, beam_record: &BeamRecord| {
        let usual = |system| Curve::new(0, system, OPT_13B, ALPACA_LIKE, 10.0, &LAB);
        let curve_of = |system| Curve { method, host, max_num_seqs, ..usual(system) };
        let rates = rates(&[curve_of(System::Paged), curve_of(System::Orca(Oracle))], beam_record);
        rates[0] / rates[1]
    };
    let gain = |method, beam_record: &BeamRecord| gain_on(0.0, MAX_NUM_SEQS, method, beam_record);
    let none = BeamRecord::default();
    let (single, samples) = (gain(Method::Single, &none), gain(Method::Samples(6), &none));
    let searches = searches::record(6, &LAB).unwrap();
    let beams = gain(Method::Beams(6), &searches);
    assert!(single > 1.2 && samples > 1.2 && beams > single && beams > samples, "{single} {samples} {beams}");
    let slow = gain_on(PAPER_HOST, 1024, Method::Beams(6), &searches);
    assert!((2.1..2.6).contains(&slow), "{slow}");
}

/// Figure 15: beams share more than samples, and long prompts more than short ones.
#[test]
fn beams_and_long_prompts_share_more() {
    let cost = OPT_13B.cost().unwrap();
    let searches = searches::record(4, &LAB).unwrap();
    let saved = |workload: &TraceWorkload, method| {
        let curve = Curve { method, ..Curve::new(0, System::Paged, OPT_13B, workload.clone(), 1.0, &LAB) };
        curve.run(&LAB, &cost, &searches, 0.5, |_| {}).unwrap().sharing_saved()
    };
    let [alpaca, sharegpt] = [ALPACA_LIKE, SHAREGPT_LIKE]
        .map(|workload| [Method::Samples(4), Method::Beams(4)].map(|m| saved(&workload, m)));
    assert!(
        alpaca[0] > 0.02 && alpaca[1] > alpaca[0] && sharegpt[0] > alpaca[0] && sharegpt[1] > sharegpt[0],
        "{alpaca:?} {sharegpt:?}"
    );
    assert_eq!(saved(&ALPACA_LIKE, Method::Single), 0.0);
}

/// Figure 16: the longer the common prefix, the greater the gain.
#[test]
fn a_longer_prefix_gains_more() {
    let gain = |tokens| {
        let curve_of = |system, keeps_prefix| Curve {
            keeps_prefix,
            ..Curve::new(0, system, LLAMA_13B, TraceWorkload::Translation(tokens), 30.0, &LAB)
        };
        let rates =
            rates(&[curve_of(System::Paged, true), curve_of(System::Orca(Oracle), false)], &BeamRecord::default());
        rates[0] / rates[1]
    };
    let (one_shot, five_shot) = (gain(80), gain(341));
    assert!(one_shot > 1.2 && five_shot > 1.5 * one_shot, "{one_shot} {five_shot}");
}

/// Figure 17: for a chatbot the three Orcas are similar, and Quire is faster than all of them.
#[test]
fn long_histories_make_orcas_alike() {
    let orca = [Oracle, Pow2, Max].map(System::Orca);
    let systems = [System::Paged, orca[0], orca[1], orca[2]];
    let rates = rates(
        &systems.map(|system| Curve::new(0, system, OPT_13B, TraceWorkload::Chat, 1.0, &LAB)),
        &BeamRecord::default(),
    );
    assert!(rates[1] / rates[3] < 1.3, "{rates:?}");
    assert!(rates[0] / rates[1] > 1.3, "{rates:?}");
}

/// Figure 18b: blocks longer than the requests waste memory, and therefore time.
#[test]
fn large_blocks_are_bad_for_short_requests() {
    let cost = System::Paged.cost(&OPT_13B.cost().unwrap());
    let curve = Curve::new(0, System::Paged, OPT_13B, ALPACA_LIKE, 80.0, &LAB);
    let rate = 0.95 * curve.sustained(&LAB, &OPT_13B.cost().unwrap(), &BeamRecord::default()).unwrap().rate;
    let latency = |block_size: usize| {
        let outcome = curve.run(&LAB, &cost, &BeamRecord::default(), rate, |server| server.block_size = block_size);
        outcome.unwrap().normalized_latency().unwrap()
    };
    let [small, usual, large] = [8, 16, 256].map(latency);
    assert!(large > 1.5 * usual && small < 1.2 * usual, "{small} {usual} {large}");
}

/// Figure 19a: recomputation does not depend on the block size. Swapping block by block does, and gathered swapping
/// hardly does.
#[test]
fn small_blocks_are_bad_for_swapping_block_by_block() {
    let cost = OPT_13B.cost().unwrap();
    let tokens: usize = 512;
    let swap = |size: usize, swapping| {
        let server =
            SimulatedServer { block_size: size, swapping, ..SimulatedServer::as_in_the_paper(&cost, OPT_13B.slots) };
        2.0 * price::swap_seconds(&server, tokens / size)
    };
    let recompute = cost.seconds(&StepLoad { prompts: vec![(tokens, tokens)], logits: 1, ..StepLoad::default() });
    assert!(swap(1, Swapping::PerBlock) > 5.0 * recompute);
    assert!(recompute < 1.2 * swap(16, Swapping::PerBlock) && swap(16, Swapping::PerBlock) < 3.0 * recompute);
    assert!(swap(256, Swapping::PerBlock) < swap(16, Swapping::PerBlock));
    assert_eq!(swap(1, Swapping::Gathered), swap(256, Swapping::Gathered));
}

/// Figure 19b: end to end, both ways are similar with blocks of 16.
#[test]
fn recomputing_and_swapping_are_alike_at_the_usual_size() {
    let cost = System::Paged.cost(&OPT_13B.cost().unwrap());
    let curve = Curve::new(0, System::Paged, OPT_13B, SHAREGPT_LIKE, 4.0, &LAB);
    let latency = |preemption| {
        let change = |server: &mut SimulatedServer<'_>| server.preemption = preemption;
        let outcome = curve.run(&LAB, &cost, &BeamRecord::default(), 5.0, change).unwrap();
        assert!(outcome.preempted > 0);
        outcome.normalized_latency().unwrap()
    };
    let (recompute, swap) = (latency(Preemption::Recompute), latency(Preemption::Swap));
    assert!((recompute / swap - 1.0).abs() < 0.3, "{recompute} {swap}");
}

/// On every workload, Orca's memory holds more tokens the more it knows about outputs. Paged memory holds more than any
/// Orca, and more with smaller blocks. For sustained rates, blocks of 16 are as good as any.
#[test]
#[ignore = "takes several seconds; a part of `.ci/run nightly`"]
fn smaller_blocks_hold_more_tokens_and_gain_little() {
    let lab = Lab { seconds: 40.0, ..LAB };
    for workload in workloads::served().unwrap() {
        let shares = workloads::memory_shares(&workload, 3.0 * workload.guess, &lab).unwrap();
        // Few slots of blocks are unfilled. The other memory without tokens is free.
        let usual = shares[4];
        assert!(usual.internal < 0.1 && usual.reserved == 0.0, "{}: {usual:?}", workload.name);
        let shares: Vec<f64> = shares.iter().map(|share| share.tokens).collect();
        let (orcas, blocks) = shares.split_at(3);
        let about = 0.005;
        assert!(orcas.is_sorted_by(|a, b| *a < b + about), "{}: {shares:?}", workload.name);
        assert!(blocks.is_sorted_by(|a, b| a + about > *b), "{}: {shares:?}", workload.name);
        assert!(blocks.iter().all(|share| *share > orcas[2]), "{}: {shares:?}", workload.name);
    }
    let rates = workloads::rates(&workloads::served().unwrap()[2], &LAB).unwrap();
    assert!(rates.iter().all(|rate| *rate < 1.05 * rates[1]), "{rates:?}");
}
