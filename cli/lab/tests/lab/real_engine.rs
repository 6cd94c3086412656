//! Gates in front of the real engine: each request is answered exactly once, and the requests of a batch end together.

use engine::ModelFiles;
use engine::{Device, Llm, Options};
use lab::real_engine::{self, Gate};
use simulator::admission::{AdmissionPolicy, Contiguous, Reservation};
use simulator::request::{Method, TraceRequest};

const LENGTHS: [(usize, usize); 7] = [(5, 9), (20, 3), (8, 30), (40, 12), (3, 3), (17, 5), (9, 21)];

fn serve(mut gate: Gate) -> Vec<(TraceRequest, f64)> {
    let options = Options { device: Device::Cpu, kv_memory: Some(16 << 20), ..Options::default() };
    let mut llm = Llm::load(&ModelFiles::bundled(), &options).unwrap();
    let request = |(prompt, output)| TraceRequest { arrival: 0.0, prompt, prefix: 0, output, method: Method::Single };
    let outcome = real_engine::run(&mut llm, &mut gate, &LENGTHS.map(request), 1).unwrap();
    assert_eq!(outcome.generated, LENGTHS.iter().map(|lengths| lengths.1).sum::<usize>());
    assert_eq!(llm.stats().preemptions, 0);
    let mut served: Vec<(usize, usize)> = outcome.completed.iter().map(|(r, _)| (r.prompt, r.output)).collect();
    let mut all = LENGTHS.to_vec();
    served.sort_unstable();
    all.sort_unstable();
    assert_eq!(served, all, "each request is answered once");
    outcome.completed
}

#[test]
fn every_request_is_answered_once_behind_every_gate() {
    let orca = |reservation| {
        Gate::AdmissionPolicy(Box::new(Contiguous::new(reservation, 128, 64)) as Box<dyn AdmissionPolicy>)
    };
    serve(Gate::Open);
    for reservation in [Reservation::Max, Reservation::Pow2, Reservation::Oracle] {
        serve(orca(reservation));
    }
}

#[test]
fn a_batch_is_answered_when_its_last_request_is_done() {
    let ends: Vec<f64> = serve(Gate::Batches(3)).into_iter().map(|(_, end)| end).collect();
    let batches: Vec<usize> = ends.chunk_by(|a, b| a == b).map(<[f64]>::len).collect();
    assert_eq!(batches, [3, 3, 1]);
}
