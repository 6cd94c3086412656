"""The colours of requests: six are distinct in both colour schemes and with colour blindness, and all texts are readable."""

import math

from browser import opened, request, shown

# Simulates the absence of red, green or blue receptors: matrices of Machado, Oliveira and Fernandes (2009), for linear RGB.
EYES = {
    "of most": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "without green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "without blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# Distances in Oklab, where black and white are 100 apart: easy to tell apart, and possible to tell apart.
EASILY, AT_ALL = 12, 8


def linear(colour):
    parts = [int(colour.strip().lstrip("#")[i:i + 2], 16) / 255 for i in (0, 2, 4)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def oklab(rgb):
    def times(matrix, vector):
        return [sum(m * v for m, v in zip(row, vector)) for row in matrix]
    lms = times([(0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
                 (0.0883024619, 0.2817188376, 0.6299787005)], rgb)
    return times([(0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
                  (0.0259040371, 0.7827717662, -0.8086757660)], [math.copysign(abs(x) ** (1 / 3), x) for x in lms])


def distance(a, b, eyes):
    def seen(colour):
        rgb = linear(colour)
        return oklab([min(1, max(0, sum(m * c for m, c in zip(row, rgb)))) for row in EYES[eyes]])
    return 100 * math.dist(seen(a), seen(b))


def contrast(a, b):
    def luminance(colour):
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour)))
    dark, light = sorted([luminance(a), luminance(b)])
    return (light + 0.05) / (dark + 0.05)


def test_requests_are_kept_apart(browser, address):
    for scheme in ["light", "dark"]:
        with opened(browser, address, color_scheme=scheme) as page:
            shades = page.evaluate("import('/page/colours.js').then((module) => module.SHADES)")
            others = page.evaluate("['--free', '--cached', '--back'].map((name) => getComputedStyle(document.body).getPropertyValue(name))")
            for eyes in EYES:
                least = EASILY if eyes == "of most" else AT_ALL
                for i, first in enumerate(shades[:6]):
                    for second in shades[:i]:
                        apart = min(distance(a, b, eyes) for a in first for b in second)
                        assert apart >= least, (eyes, first, second, apart)
                for shade in sum(shades, []):
                    apart = min(distance(shade, other, eyes) for other in others)
                    assert apart >= AT_ALL, (scheme, eyes, shade, others, apart)
            assert all(contrast(shade, "#000000") >= 4.5 for shade in sum(shades, [])), "the numbers are readable"
            # Six concurrent requests have six colours, whatever ran before and however many wait.
            for ids in [(1, 2, 3, 4, 5, 6), (2, 6, 14, 22, 30, 38), (6, 46, 54, 62, 70, 78)]:
                running = [request([block], id=id) for block, id in enumerate(ids)]
                waiting = [request(id=id) for id in range(ids[-1] + 1, 100)]
                shown(page, {"num_blocks": 8, "refs": [[1, 6], [0, 2]], "running": running, "waiting": waiting})
                page.locator(f"[data-request='{ids[-1]}']").wait_for()
                colours = page.locator("#requests code").evaluate_all("codes => codes.map((code) => code.style.background)")
                assert len(set(colours)) == 6, (ids, colours)


def test_a_colour_lasts_as_long_as_its_request(browser, address):
    with opened(browser, address) as page:
        pool = {"num_blocks": 8, "refs": [[1, 6], [0, 2]]}
        colour = lambda id: page.locator(f"[data-request='{id}'] .head i").evaluate("i => i.style.background")
        requests = [request([block], id=block + 1) for block in range(6)]
        shown(page, {**pool, "running": requests})
        page.locator("[data-request='6']").wait_for()
        before = {id: colour(id) for id in range(1, 7)}
        assert len(set(before.values())) == 6 and all(before.values()), before
        # Two are swapped out, and new ones arrive meanwhile.
        swapped = [{**other, "swapped": True} for other in requests[:2]]
        shown(page, {**pool, "num_blocks": 9, "refs": [[1, 6], [0, 3]], "running": [*requests[2:], request([0], id=7), request([1], id=8)], "waiting": swapped})
        page.locator("[data-request='8']").wait_for()
        assert {id: colour(id) for id in before} == before
        assert len({colour(id) for id in range(3, 9)}) == 6, "requests with blocks have distinct colours"
        shown(page, {**pool, "running": requests})
        page.locator("[data-request='8']").wait_for(state="detached")
        assert {id: colour(id) for id in before} == before


# Finds the texts of the page whose contrast with their background is below WCAG's level AA.
UNREADABLE = """() => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        for (; element; element = element.parentElement) {
            const colour = parse(getComputedStyle(element).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return parse(getComputedStyle(document.body).backgroundColor);
    };
    const found = [];
    for (const element of document.body.querySelectorAll("*")) {
        const text = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if ((text || element.matches("input, textarea")) && element.checkVisibility() && !element.matches(":disabled")) {
            const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))].sort((x, y) => x - y);
            if ((b + 0.05) / (a + 0.05) < 4.5) found.push(`${element.outerHTML.slice(0, 80)}: ${(b + 0.05) / (a + 0.05)}`);
        }
    }
    return found;
}"""


def test_everything_can_be_read(browser, address):
    for scheme in ["light", "dark"]:
        with opened(browser, address, color_scheme=scheme) as page:
            finished = [{"id": 1, "at": 1764000000.5, "prompt_tokens": None, "output_tokens": 0, "first_token": None, "per_token": None, "time": 1.5,
                         "ended": {"error": 1}}]
            counts = {"finished": 9, "failed": 2, "refused": 0, "invalid": 0, "aborted": 0}
            running = [request([block], id=block) for block in range(6)]
            waiting = [request([1], id=7, swapped=True), request(id=8)]
            shown(page, {"num_blocks": 8, "refs": [[1, 6], [0, 2]], "running": running, "waiting": waiting, "finished": finished, "counts": counts})
            page.check("#prompt [name=ignore_eos]")
            page.click("#prompt [name=run]")
            page.locator("#prompt .note", has_text="cut at").first.wait_for()
            assert page.evaluate(UNREADABLE) == [], scheme
            page.locator("[data-request='2']").hover(position={"x": 150, "y": 8})
            page.click("#chat-tab")
            page.fill("#chat textarea", "Hello")
            page.click("#chat [name=run]")
            page.locator("#chat .assistant").wait_for()
            page.locator("[data-request='3'] .name").hover()
            assert page.evaluate(UNREADABLE) == [], scheme


ALL = [test_requests_are_kept_apart, test_a_colour_lasts_as_long_as_its_request, test_everything_can_be_read]
