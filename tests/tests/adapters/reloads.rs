//! Adapters that are loaded and unloaded while requests run.

use engine::{AdapterHandle, Completion, Event, Llm, RequestId};

use super::{bits, files, greedy, load, options, prompt};

fn step(llm: &mut Llm, done: &mut Vec<Completion>) {
    for event in llm.step().unwrap() {
        if let Event::Done(completion) = event {
            done.push(completion);
        }
    }
    assert_eq!(llm.engine().scheduler().check_integrity(), Ok(()));
}

fn finish(llm: &mut Llm) -> Vec<Completion> {
    let mut done = Vec::new();
    while llm.has_work() {
        step(llm, &mut done);
    }
    done
}

/// The result for the prompt with an adapter, and the number of its tokens that were cached.
fn ask(llm: &mut Llm, adapter: Option<&AdapterHandle>) -> (Vec<Vec<(u32, u32)>>, usize) {
    llm.add(&prompt(1, 50), greedy(adapter)).unwrap();
    let done = finish(llm);
    (bits(&done[0]), done[0].cached_tokens)
}

#[test]
fn a_reload_under_the_same_name_changes_only_later_requests() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let old = load(&llm, &files, ("name", 1, 4), directory.path());
    let (old_result, cached) = ask(&mut llm, Some(&old));
    assert_eq!(cached, 0);
    assert_eq!(ask(&mut llm, Some(&old)), (old_result.clone(), 48), "a hit on blocks of the same adapter");

    // Reload in the middle of a request.
    let running: RequestId = llm.add(&prompt(1, 50), greedy(Some(&old))).unwrap();
    let mut done = Vec::new();
    (0..5).for_each(|_| step(&mut llm, &mut done));
    let new = load(&llm, &files, ("name", 2, 4), directory.path());
    assert_ne!(new, old);
    assert_eq!(llm.adapters().get("name"), Some(new.clone()));
    drop(old);
    let later = llm.add(&prompt(1, 50), greedy(Some(&new))).unwrap();
    done.extend(finish(&mut llm));
    let result = |id: RequestId| done.iter().find(|done| done.id == id).unwrap();
    assert_eq!(bits(result(running)), old_result, "a running request keeps its adapter");
    assert_eq!(result(later).cached_tokens, 0, "blocks of the old adapter are no hit");
    assert_ne!(bits(result(later)), old_result);
    let fresh = {
        let mut llm = Llm::load(&files, &options()).unwrap();
        let adapter = load(&llm, &files, ("name", 2, 4), directory.path());
        ask(&mut llm, Some(&adapter)).0
    };
    assert_eq!(bits(result(later)), fresh);
}

#[test]
fn equal_contents_share_blocks_under_any_name() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let [one, same, other] =
        [("one", 1, 4), ("same", 1, 4), ("other", 2, 4)].map(|it| load(&llm, &files, it, directory.path()));
    let (result, _) = ask(&mut llm, Some(&one));
    assert_eq!(ask(&mut llm, Some(&same)), (result.clone(), 48));
    assert_eq!(ask(&mut llm, Some(&other)).1, 0);
    assert_eq!(ask(&mut llm, None).1, 0);
    let names: Vec<String> = llm.adapters().list().iter().map(|adapter| adapter.name().to_owned()).collect();
    assert_eq!(names, ["one", "other", "same"]);
}

#[test]
fn an_unloaded_adapter_serves_its_requests_to_the_end() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let adapter = load(&llm, &files, ("name", 1, 4), directory.path());
    let (result, _) = ask(&mut llm, Some(&adapter));
    llm.add(&prompt(1, 50), greedy(Some(&adapter))).unwrap();
    drop(adapter);
    assert!(llm.adapters().unload("name") && !llm.adapters().unload("name"));
    assert_eq!((llm.adapters().get("name"), llm.adapters().list()), (None, Vec::new()));
    assert_eq!(bits(&finish(&mut llm)[0]), result);
}

#[test]
fn a_pinned_prefix_is_for_the_model_alone() {
    let (files, directory) = (files("llama2"), tempfile::tempdir().unwrap());
    let mut llm = Llm::load(&files, &options()).unwrap();
    let adapter = load(&llm, &files, ("name", 1, 4), directory.path());
    let without = ask(&mut llm, Some(&adapter)).0;
    let mut pinned = Llm::load(&files, &options()).unwrap();
    pinned.pin_prefix(&prompt(1, 40)).unwrap();
    assert_eq!(ask(&mut pinned, Some(&adapter)), (without, 0));
    assert_eq!(ask(&mut pinned, None).1, 40);
}
