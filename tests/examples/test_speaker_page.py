"""The page of the speaker demo in a real browser: bits, sound, room and colours.

`make pictures` keeps the screenshot in docs/pictures.
"""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colours import COLOURS, contrast, pixels
from examples_as_modules import example
from pages import PHONE, SCHEMES, many, one, until, window
from tolerance import assert_close

from stepnet.compiler.targets.frame import FrameRun

Array = np.ndarray
PAGE = example("speaker_page")
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
WITHOUT_SIMD = "WebAssembly.validate = () => false;"
SOUND_OF_THE_TEST = """
navigator.mediaDevices.getUserMedia = async () => ({ getTracks: () => [] });
const feed = ({ port }) => {
  for (let i = 0; i < window.sound.length; i += 128) port.onmessage({ data: window.sound.slice(i, i + 128) });
};
AudioWorkletNode = class { port = {}; };
AudioContext = class {
  sampleRate = 10000;
  audioWorklet = { addModule: async () => {} };
  createMediaStreamSource() { return { connect: (node) => setTimeout(feed, 20, node) }; }
  async close() {}
};
"""
"""Hands on the sound of the test as fast as it is heard: that of a machine comes late where that is busy."""
REFUSED = "navigator.mediaDevices.getUserMedia = async () => { throw new Error('Permission denied'); };"
HEARD = """
const done = arguments[0];
const digits = (byte) => byte.toString(16).padStart(2, "0");
const hex = (y) => Array.from(new Uint8Array(y.buffer), digits).join("");
const buttons = [...document.querySelectorAll("[data-begin]")];
import("./page.js").then(({ heard }) => done(buttons.map((button) => {
  button.click();
  const status = document.getElementById("status").textContent;
  const best = document.querySelector(".best").firstChild.textContent;
  return [button.textContent, heard.map((y) => [hex(y.y_scores), hex(y.y_memory)]), status, best];
})));
"""
DRAWN = """
const [done] = arguments;
const canvas = document.getElementById("picture");
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
import("./page.js").then(({ heard }) => done([heard.map((y) => [...y.y_memory]), canvas.width, [...data]]));
"""
FRAMES = """
const [rate, sound, done] = arguments;
import("./sound.js").then(({ Frames, cepstrum }) => {
  const frames = new Frames(rate);
  const samples = [];
  for (let i = 0; i < sound.length; i += 128) samples.push(...frames.push(sound.slice(i, i + 128)));
  done([samples.map((each) => [...each]), samples.map((each) => [...cepstrum(each)])]);
});
"""


class Unkept(SimpleHTTPRequestHandler):
    """Serves files that the browser does not keep."""

    def end_headers(self) -> None:
        """Ends the headers, with one that says that nothing is to be kept."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


@pytest.fixture(scope="module")
def site(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page: its address, its folder, and what was built for it."""
    folder = tmp_path_factory.mktemp("page")
    made = PAGE.make(folder)
    with ThreadingHTTPServer(("localhost", 0), partial(Unkept, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/", folder, made
        server.shutdown()


@pytest.fixture(scope="module")
def numpys(site: Any) -> dict[int, list[list[str]]]:
    """The bytes of scores and memory of each frame by NumPy, for the rows of the utterances on the page."""
    data, results = PAGE.load(), dict[int, list[list[str]]]()
    for row in PAGE.chosen(data):
        run = FrameRun(site[2].program)
        frames = np.asarray(data.utterances[row])
        results[row] = [[y.tobytes().hex() for y in run.step(frame)] for frame in frames]
    return results


def opened(browser: Any, url: str, scheme: str = "light", before: str = "") -> None:
    """Opens the page where movement is unwanted; before: a script that runs in it first."""
    features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", "reduce")]
    media = {"features": [{"name": name, "value": value} for name, value in features]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": before})
    browser.get(url)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    until(lambda: status(browser).startswith("Ready"))


def status(browser: Any) -> str:
    """The text of what the page does now."""
    return one(browser, "#status").text


def voice(frames: Array) -> Array:
    """Sound at 10 kHz with the cepstrum of each frame: pulses of a voice through the filter of the frame."""
    count = 64 * len(frames) + 192
    sound = np.zeros(count + 12)
    for i in range(count):
        c = np.array([0, *frames[min(max((i - 96) // 64, 0), len(frames) - 1)]], np.float64)
        a = c.copy()
        for n in range(2, 13):
            a[n] -= sum(k / n * c[k] * a[n - k] for k in range(1, n))
        sound[i + 12] = (i % 83 == 0) + a[1:] @ sound[i : i + 12][::-1]
    return 0.7 * sound[12:] / np.abs(sound).max()


@pytest.mark.parametrize(("before", "module"), [("", "speakers.wasm"), (WITHOUT_SIMD, "speakers.plain.wasm")])
def test_recorded_utterances_have_the_bits_of_numpy(
    browser: Any, site: Any, numpys: dict[int, list[list[str]]], before: str, module: str
):
    url, data = site[0], PAGE.load()
    opened(browser, url, before=before)
    browser.get_log("browser")
    heard = browser.execute_async_script(HEARD)
    for row, (name, frames, says, best) in zip(PAGE.chosen(data), heard, strict=True):
        assert frames == numpys[row]
        speaker = int(data.recorded["logits"][row].argmax()) + 1
        assert name == str(data.speakers[row])
        assert says.startswith(f"After {len(frames)} frames: speaker {speaker}, ")
        assert ("(right)" in says) == (speaker == data.speakers[row])
        assert best == f"Speaker {speaker}"
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((each) => each.name)"
    )
    assert [name for name in loaded if name.endswith(".wasm")] == [url + module]
    assert browser.get_log("browser") == []


def test_the_page_is_small_and_loads_nothing_from_elsewhere(site: Any):
    _, folder, made = site
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert sum(files.values()) < 100_000
    assert files["speakers.weights"] == made.sizes.constant_bytes
    texts = "".join(
        path.read_text("utf-8") for path in folder.iterdir() if path.suffix in (".html", ".js", ".css")
    )
    assert {line.split('"')[1] for line in texts.splitlines() if "https://" in line} == {
        "https://doi.org/10.24432/C5NS47"
    }


def test_the_memory_grows_column_by_column(browser: Any, site: Any):
    opened(browser, site[0])
    many(browser, "[data-begin]")[0].click()
    memory, width, drawn = browser.execute_async_script(DRAWN)
    picture, frames = np.array(drawn).reshape(64, width, 4), len(memory)
    assert 0 < frames < width
    assert (picture[:, frames:] == 0).all()
    np.testing.assert_allclose(picture[:, :frames, 3].T, 255 * np.abs(memory), atol=0.51)
    shown = np.abs(memory) > 0.01
    blue = picture[:, :frames, 2].T > picture[:, :frames, 0].T
    assert (blue == (np.array(memory) > 0))[shown].all()
    assert one(browser, "#picture").accessible_name == f"Memory of 64 units after each of {frames} frames"


def test_sound_becomes_the_cepstrum_of_its_linear_prediction(browser: Any, site: Any):
    """The cepstrum is the Fourier transform of the logarithm of the spectrum of the predictor."""
    opened(browser, site[0])
    noise = np.random.default_rng(0).normal(scale=0.01, size=1408)
    sound = noise + voice(np.asarray(PAGE.load().utterances[0]))
    samples, found = browser.execute_async_script(FRAMES, 10_000, sound.tolist())
    assert len(samples) == (len(sound) - 256 - 8) // 64 + 1
    for each, coefficients in zip(samples, found, strict=True):
        x = np.hamming(256) * each
        r = np.correlate(x, x, "full")[255 : 255 + 13]
        lags = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
        predictor = np.linalg.solve(r[lags] + 1e-9 * r[0] * np.eye(12), r[1:])
        spectrum = np.abs(np.fft.rfft([1, *-predictor], 1 << 16))
        right = -2 * np.fft.irfft(np.log(spectrum))[1:13]
        assert_close(np.float32(coefficients), right, width=256)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_sound_of_any_rate_is_taken_at_10_khz(browser: Any, site: Any, rate: int):
    """Tones that 10 kHz can hold come through within 1%, others do not."""
    opened(browser, site[0])
    time = np.arange(rate // 10) / rate
    tones = [np.sin(2 * np.pi * frequency * time) for frequency in (440, 6500)]
    samples = [browser.execute_async_script(FRAMES, rate, tone.tolist())[0] for tone in tones]
    starts = 64 * np.arange(len(samples[0]))[:, None] + np.arange(256)
    inner = starts > 8  # the filter has no sound from before the first sample
    away = np.array(samples[0]) - np.sin(2 * np.pi * 440 * starts / 10_000)
    assert np.abs(away[inner]).max() < 0.01
    assert np.abs(np.array(samples[1])[inner]).max() < 0.01


def test_a_microphone_tells_whom_one_sounds_like(browser: Any, site: Any):
    opened(browser, site[0], before=SOUND_OF_THE_TEST)
    button = one(browser, "#microphone")
    data = PAGE.load()
    browser.get_log("browser")
    for row in (4, 163):
        browser.execute_script(
            "window.sound = arguments[0]", voice(np.asarray(data.utterances[row])).tolist()
        )
        button.click()
        until(lambda: status(browser).startswith("You sound like") and "Pause" in status(browser))
        assert status(browser).startswith(f"You sound like speaker {data.speakers[row]}, ")
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
    assert browser.get_log("browser") == []


def test_a_microphone_that_is_refused_leaves_the_recordings(browser: Any, site: Any):
    opened(browser, site[0], before=REFUSED)
    one(browser, "#microphone").click()
    until(lambda: "Permission denied" in status(browser))
    assert status(browser).endswith("choose a recorded speaker.")
    many(browser, "[data-begin]")[0].click()
    assert status(browser).startswith("After")


def test_weights_that_are_missing_are_told(browser: Any, site: Any):
    url, folder, _ = site
    weights = (folder / "speakers.weights").rename(folder / "away")
    browser.get(url)
    until(lambda: "could not be loaded" in status(browser))
    weights.rename(folder / "speakers.weights")
    assert "404" in status(browser)
    browser.get_log("browser")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_page_can_be_read_on_a_phone(browser: Any, site: Any, scheme: str):
    with window(browser, PHONE):
        opened(browser, site[0], scheme)
        many(browser, "[data-begin]")[0].click()
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= PHONE[0]
        for ink, paper, what in browser.execute_script(COLOURS, "body *:not(script)"):
            assert contrast(ink, paper) >= 4.5, (what, ink, paper)  # WCAG 2.2, 1.4.3, level AA
    names = [each.accessible_name for each in many(browser, "button, canvas, [role=meter]")]
    assert all(names)
    assert len(names) == 11 + 1 + 9


def test_a_screenshot(browser: Any, site: Any, tmp_path: Path, request: pytest.FixtureRequest):
    folder = PICTURES if request.config.getoption("--save") else tmp_path
    path = folder / "speaker_page.png"
    with window(browser, (720, 1080)):
        opened(browser, site[0])
        many(browser, "[data-begin]")[2].click()
        assert browser.save_screenshot(str(path))
    assert len(np.unique(pixels(path) @ [1, 256, 256**2])) > 100
