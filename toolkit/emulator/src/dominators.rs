//! Immediate post-dominators: where the lanes of a warp that diverge at a branch reconverge.

use crate::program::NONE;

/// Returns each node's immediate post-dominator, or [`NONE`] if that is the function's exit.
///
/// `successors` lists the successors of each node. A node without successors leaves the function. The algorithm is by
/// Cooper, Harvey and Kennedy, on the reversed graph.
pub(crate) fn immediate_post_dominators(successors: &[Vec<u32>]) -> Vec<u32> {
    let exit = successors.len();
    let next = |node: usize| -> Vec<usize> {
        let listed = successors.get(node).map_or(&[][..], |list| list.as_slice());
        if listed.is_empty() && node != exit {
            return vec![exit];
        }
        listed.iter().map(|&n| (n as usize).min(exit)).collect()
    };
    let mut predecessors = vec![Vec::new(); exit + 1];
    for node in 0..exit {
        for after in next(node) {
            predecessors[after].push(node);
        }
    }
    // Post-order of the reversed graph, from the exit.
    let mut order = Vec::with_capacity(exit + 1);
    let mut number = vec![usize::MAX; exit + 1];
    let mut seen = vec![false; exit + 1];
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((node, index)) = stack.pop() {
        if let Some(&before) = predecessors[node].get(index) {
            stack.push((node, index + 1));
            if !seen[before] {
                seen[before] = true;
                stack.push((before, 0));
            }
        } else {
            number[node] = order.len();
            order.push(node);
        }
    }
    let mut dominator = vec![usize::MAX; exit + 1];
    dominator[exit] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &node in order.iter().rev().filter(|&&node| node != exit) {
            let processed = next(node).into_iter().filter(|&after| dominator[after] != usize::MAX);
            let new = processed.reduce(|mut a, mut b| {
                while a != b {
                    while number[a] < number[b] {
                        a = dominator[a];
                    }
                    while number[b] < number[a] {
                        b = dominator[b];
                    }
                }
                a
            });
            if let Some(new) = new
                && dominator[node] != new
            {
                dominator[node] = new;
                changed = true;
            }
        }
    }
    // A node that cannot reach the exit (an endless loop) has no meeting point either.
    (0..exit).map(|node| if dominator[node] >= exit { NONE } else { dominator[node] as u32 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_reconverge_after_the_branch() {
        // Node 0 branches to 1 or 2. Both go to 3, which loops to 0 or leaves through 4.
        let meet = immediate_post_dominators(&[vec![1, 2], vec![3], vec![3], vec![0, 4], vec![]]);
        assert_eq!(meet, [3, 3, 3, 4, NONE]);
    }

    #[test]
    fn an_arm_that_returns_never_reconverges() {
        assert_eq!(immediate_post_dominators(&[vec![1, 2], vec![], vec![]]), [NONE, NONE, NONE]);
    }

    #[test]
    fn an_endless_loop_has_no_meeting_point() {
        assert_eq!(immediate_post_dominators(&[vec![0, 1], vec![1]])[1], NONE);
    }
}
