import os
import signal
import threading

import pytest

from qwenvl.child import Child
from qwenvl.rewards.function import RewardFunction
from qwenvl.rewards.functions import maths
from qwenvl.rewards.functions.maths import MathReward
from qwenvl.rewards.mathematics.comparing import compare_as_text
from qwenvl.rewards.mathematics.units import split_unit
from qwenvl.rewards.rubric import Rubric


def answer(text):
    return f"<think>so 3</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "solution", "score"),
    [
        ("5", "5", 1.0),
        ("5", "3", 0.0),  # 3 stands in the thinking
        ("0.5", "1/2", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"2\sqrt{2}", r"\sqrt{8}", 1.0),
        ("(x-1)(x+1)", "x^2 - 1", 1.0),
        (r"\boxed{7}", "7", 1.0),
        ("x = 3", "3", 1.0),
        (r"30^\circ", "30", 1.0),
        ("{2, 1}", r"\{1, 2\}", 1.0),
        ("[1.0, 5.0]", "[2.0, 5.0]", 0.0),
        ("1,000", "1000", 1.0),
        ("2 cars", "2 trucks", 0.0),
        ("2.0 Cars", "2 cars", 1.0),
        ("2", "2 cars", 1.0),
        (r"5 \text{ cm}", "5 cm", 1.0),
        (r"5 \text{ m/h}", r"5 \text{ m/s}", 0.0),
        ("5 m/s", r"5 \text{ m/s}", 1.0),
        ("9.8 m/s^2", r"9.8 \text{ m/s}^2", 1.0),
        (r"9.8 \text{ m/s}", r"9.8 \text{ m/s}^2", 0.0),
        (r"5 \text{ m}^3", r"5 \text{ m}^2", 0.0),
        ("5 m^2", r"5 \mathrm{m}^{2}", 1.0),
        ("6", r"6 \text{ m}^2", 1.0),
        (r"\frac{1}{2} \text{ s}", r"\frac{1}{2} \text{ m}", 0.0),
        (r"0.5 \text{ m}", r"\frac{1}{2} \text{ m}", 1.0),
        (r"\sqrt{8}~\text{m}", r"2\sqrt{2}\,\text{m}", 1.0),
        (r"2\pi \text{ cm}", r"2\pi \text{ m}", 0.0),
        (r"5 \text{ J/s}", r"5 \text{ W/m}", 0.0),
        ("10 m/s", "36 km/h", 0.0),
        (r"3+4\mathrm{i}", "3+4i", 1.0),  # no unit
        (r"\frac{5x}{y}", "5x/y", 1.0),
        (r"3 \times 10^5", "3e5", 1.0),
        ("300,000", "3E5", 1.0),
        ("15e", "3e5", 0.0),
        ("10^{-3}", "1e-3", 1.0),
        ("5e-1", r"\frac{1}{2}", 1.0),
        (r"2.5 \times 10^{-3}", "2.5e-3", 1.0),
        ("10^-3", "0.001", 1.0),
        ("x**2 - 1", "(x-1)(x+1)", 1.0),
        ("3*pi/4", r"\frac{3\pi}{4}", 1.0),
        ("2pi", "2π", 1.0),
        ("ln(2)", r"\ln 2", 1.0),
        ("log(100)", "2", 1.0),
        ("sin(x)", r"\cos x", 0.0),
        (r"12\mathrm{~cm}", "12 cm", 1.0),
        (r"\[5\]", "5", 1.0),
        ("(B)", "B", 1.0),
        (r"\text{(B)}", "C", 0.0),
        (r"10\,000", "10000", 1.0),
        ("10000", r"10\,000", 1.0),
        (r"1\,2", "12", 0.0),
        ("(a)", "(A)", 1.0),
        ("A", "B", 0.0),
        ("Yes.", "yes", 1.0),
        ("12:45", "12:30", 0.0),
        ("1/0", "2/0", 0.0),
        ("", "5", 0.0),
        (r"\frac{1}{", "5", 0.0),
        ("10³", "1000", 1.0),
        ("10⁻³", "0.001", 1.0),
        ("10³", "103", 0.0),
        ("1½", "3/2", 1.0),
        ("½", "1/2", 1.0),
        ("½", "12", 0.0),
        ("2π", r"2\pi", 1.0),
        ("2√3", r"\sqrt{12}", 1.0),
        ("√2+1", r"\sqrt{2}+1", 1.0),
        ("90°", "90", 1.0),
        ("∞", r"\infty", 1.0),
        ("–3", "-3", 1.0),
        ("2–4", "-2", 0.0),
        ("1e3", "1000", 1.0),
        ("1.5E-2", "0.015", 1.0),
        (".5", "5", 0.0),
        (".5", "0.5", 1.0),
        ("-.5", "-1/2", 1.0),
        ("5.", "5", 1.0),
        ("1 1/2", "11/2", 0.0),
        ("1 1/2", "3/2", 1.0),
        ("1.5", "1 1/2", 1.0),
        (r"\frac{3}{2}", "1 1/2", 1.0),
        ("-1 1/2", "-1.5", 1.0),
        ("1 2", "12", 0.0),
        ("1 2", "1 2", 1.0),
        ("10 000", "10000", 1.0),
        ("1 - 2", "-1", 1.0),
        *(("5 s", "5 m", 0.0), ("5 m", "5 m", 1.0), ("5m", "5 m", 1.0), ("5", "5 m", 0.0), ("6 m", "5 m", 0.0)),
        *(("5 cm²", "5 cm^2", 1.0), (r"\boxed{A}", "A", 1.0), (r"\boxed{B}", "A", 0.0)),
        *(("3 h", "3 min", 0.0), ("3 min", "3 min", 1.0), ("24 km/h", "24.0 km/h", 1.0), (r"\log_2 8", "3", 1.0)),
        *((r"24 \text{ cm}^2", "24 cm^2", 1.0), ("24.0 cm²", r"24 \mathrm{cm}^{2}", 1.0), ("24 cm^2", "24", 1.0)),
        *(("24 cm^3", "24 cm^2", 0.0), ("25 cm^2", "24 cm^2", 0.0), (r"\frac{1}{2} cm^2", "0.5 cm^2", 1.0)),
        *((r"\boxed{\text{yes}}", "yes", 1.0), (r"\boxed{3 cm}", "3 cm", 1.0)),
        *((r"$\frac12$.", "1/2", 1.0), (r"\frac12.", "0.5", 1.0), (r"$2\sqrt{2}.$", r"\sqrt{8}", 1.0)),
        *(("x=3.", "3", 1.0), ("**3**", "3", 1.0), ("`3`", "3", 1.0), ("= 3", "3", 1.0), ("2·3", "6", 1.0)),
        *((r"The answer is $\boxed{\frac{1}{2}}$.", "0.5", 1.0), (r"so \boxed{4}. Done", "4", 1.0)),
        *(("5", r"We have $x=5$. So the answer is $\boxed{5}$.", 1.0), ("4", r"$\boxed{4}$, then $\boxed{5}$.", 0.0)),
        *(("5", r"$\boxed{4}$, then $\boxed{5}$.", 1.0), ("72", "48/2 = 24 clips, so 72.\n#### 72", 1.0)),
        *((r"$\boxed{72}$", "24 clips.\n#### 72", 1.0), ("24", "24 clips.\n#### 72", 0.0)),
        (r"\boxed{1} and \boxed{2}", r"The roots are \boxed{1} and \boxed{2}.", 1.0),
        *(("2", r"\boxed{1}, \boxed{2}", 0.0), (r"\boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}", 1.0)),
        *((r"x=\boxed{2}", r"x=\boxed{1}, y=\boxed{2}", 0.0), (r"x=\boxed{1}", r"x=\boxed{1}, y=\boxed{2}", 0.0)),
        *((r"\boxed{5} m", "5 m", 1.0), (r"\boxed{5} s", "5 m", 0.0), (r"\boxed{\{1, 2\}}", "{2, 1}", 1.0)),
        *((r"\boxed{1}, \boxed{2}", "2", 0.0), (r"2\boxed{3}", "23", 0.0), (r"\boxed{", "2", 0.0)),
        *(("5 mW", "5 MW", 0.0), ("5 MW", "5.0 MW", 1.0), ("5 Mm", "5 mm", 1.0), ("5 mW/s", "5 MW/s", 0.0)),
        *(("f'(x)", "f(x)", 0.0), ("f'(x)+1", "1+f'(x)", 1.0), ("x^\\prime", "x", 0.0), ("5 MHz", "5 mHz", 0.0)),
        (r"\begin{pmatrix} 1/2 \\ 2 \end{pmatrix}", r"\begin{pmatrix} \frac{1}{2} \\ 2 \end{pmatrix}", 1.0),
        (r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", 1.0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", 0.0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}", 0.0),
        *(("xy + 1", "1 + xy", 1.0), ("2ab", "2ba", 1.0), ("3+2xy", "2xy+3", 1.0), ("AB = 5", "5", 1.0)),
        *(("x+2h", "x+2", 0.0), ("3+2m", "5", 0.0), ("2ab", "2", 0.0), ("x+2h", "2h+x", 1.0), (r"\$5", "5", 1.0)),
        *((r"a \cdot b", "ab", 1.0), ("ab", "a*b", 1.0), ("xy(2x-3y)", "2x^2y-3xy^2", 1.0), ("on", "n*o", 0.0)),
        *(("A+B", "a+b", 0.0), (r"\Delta + 1", r"\delta + 1", 0.0), ("A+b", "b+a", 0.0), ("a+B", "B+a", 1.0)),
        *(("r^2-R^2", "R^2-r^2", 0.0), ("-r^2+R^2", "R^2-r^2", 1.0), ("2x", "x+X", 0.0), ("n_2", "N_2", 0.0)),
        *(("F(b)-F(a)", "f(b)-f(a)", 0.0), ("-F(a)+F(b)", "F(b)-F(a)", 1.0), ("x_b+x_A", "x_a+x_B", 0.0)),
        *((r"R^2\pi", r"\pi R^2", 1.0), ("E^2", "e^2", 0.0), ("3i", "3I", 0.0), (r"50\%", "0.5", 1.0)),
        *(("YES", "yes", 1.0), ("5 CM", "5 cm", 1.0), ("1E3", "1e3", 1.0), ("5 M", "5 m", 0.0)),
        *(("4 of 5", "5 of 4", 0.0), ("1 to 2", "2 to 1", 0.0), ("5 is", "5 si", 0.0), ("2 or 10", "4 or 5", 0.0)),
        *(("2 xy", "2 cm", 0.0), ("2 km", "2 cm", 0.0), ("2 px", "2.0 px", 1.0), ("no", "on", 0.0), ("2 kg", "2", 1.0)),
        *(("2, 3", "2 or 3", 1.0), ("$x=3$ and $x=2$", "$x=2$ or $x=3$", 1.0), ("2, 3, 5", "5, 3, and 2", 1.0)),
        *(("2", "2 or 3", 0.0), ("x=2 and y=1", "x=1, y=2", 0.0), (r"2 \text{ or } 3", "2, 3", 1.0)),
        *((r"0.\overline{3}", "1/3", 1.0), ("0.3", r"0.\overline{3}", 0.0), (r"-2.1\bar{6}", "-13/6", 1.0)),
        *(("17_8", "17_9", 0.0), ("17_{8}", "17_8", 1.0), ("17_{16}", "$17_16$", 1.0), ("15", "17_8", 0.0)),
        *(("A'", "A", 0.0), ("A\u2032", "A'", 1.0), ("30\"", "30'", 0.0), ("'B'", "B", 1.0), ('"5"', "5", 1.0)),
        *(("3 x 10^8", "3e8", 1.0), ("3x10^8 m/s", r"3 \times 10^8 \text{ m/s}", 1.0), ("2sqrt3", r"\sqrt{12}", 1.0)),
        *(("60 degrees", "60°", 1.0), ("25 degrees Celsius", "25.0 °C", 1.0), ("25 °F", "25 °C", 0.0)),
        *(("5..", "5", 1.0), ("**", "2", 0.0), (r"x = \boxed{3}", "3", 1.0)),
    ],
)
def test_math_accuracy_accepts_equivalent_answers_alone(reward, text, solution, score):
    assert reward([answer(text)], solution=[solution]) == [score]


def test_only_the_answer_block_is_read_and_no_long_one(reward):
    texts = ["<think> 3 </think><answer>5</answer>", "5", "<answer>5", answer("x" * 400 + "^2"), answer("1" * 10**6)]
    assert reward(texts, solution=["3", "5", "5", "x^2", "1"]) == [0.0] * 5


def test_waiting_for_a_busy_machine_does_not_count(reward, monkeypatch):
    """The worker stands still for longer than it may compute, as it does where others have the machine."""
    ask = Child.ask
    monkeypatch.setattr(maths, "CPU_SECONDS", 1.0)

    def pausing(child, *task):
        os.kill(child.pid, signal.SIGSTOP)
        threading.Timer(maths.CPU_SECONDS + 1, os.kill, (child.pid, signal.SIGCONT)).start()
        return ask(child, *task)

    monkeypatch.setattr(Child, "ask", pausing)
    assert reward([answer(r"\sin^2(x) + \cos^2(x)")], solution=["1"]) == [1.0]


def test_solutions_are_checked_when_data_is_read(reward):
    for good in ("5", "A", "yes", "12:30", "2 cars", r"\frac{1}{2}", r"<answer>$x^2$</answer>"):
        assert reward.check(good, {}) is None
    assert "empty" in reward.check("<answer> </answer>", {})
    assert "cannot be parsed" in reward.check(r"\frac{1}{", {})
    assert "at most 500" in reward.check("1+" * 300 + "1", {})


def test_answers_are_compared_as_text_where_that_decides():
    assert compare_as_text("two", "2") is False
    assert compare_as_text("1/2", "0.5") is True
    assert compare_as_text(r"\frac{1}{2}", "0.5") == (r"\frac{1}{2}", "0.5")
    assert split_unit(r"12 \text{sq. ft}")[1] == ""  # a dot inside is no plain unit
    assert split_unit(r"2\pi") == (r"2\pi", "")


BOMB = "9^{9^{9^{9}}}"


def test_an_interrupted_pair_ends_the_process(monkeypatch):
    """Its late answer would be taken for that of the next pair."""

    def interrupted(child, *task):
        raise KeyboardInterrupt

    reward = MathReward()
    child = reward._child = Child("operator:attrgetter", "real")
    monkeypatch.setattr(Child, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reward([answer("0.5")], solution=[r"\frac{1}{2}"])
    assert not child.alive and reward._child is None


def test_equal_completions_are_verified_once(monkeypatch):
    asked = []
    monkeypatch.setattr(MathReward, "_verify", lambda reward, *pair: asked.append(pair) or 1.0)
    texts = [answer(text) for text in ("0.5", r"\frac{2}{4}", r"\frac{2}{4}", r"\frac{2}{4}")]
    assert MathReward()(texts, solution=[r"\frac{1}{2}"] * 4) == [1.0] * 4
    assert asked == [(r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", r"\frac{2}{4}")]


def test_a_pair_that_takes_too_long_has_no_value_and_harms_nobody(reward, caplog, monkeypatch):
    monkeypatch.setattr(maths, "CPU_SECONDS", 1.0)
    texts = [answer(text) for text in (BOMB, r"\frac{1}{2}", "2/3^2")]
    rubric = Rubric([RewardFunction("math_accuracy", reward)], [1.0])
    batch = rubric.score(texts, {"solution": ["0.5"] * 3, "id": ["r1", "r2", "r3"]})
    assert batch.components == [[None, 1.0, 0.0]] and batch.totals() == [None, 1.0, 0.0]
    assert batch.failed == {"math_accuracy": [True, False, False]}
    said = "no value for record 'r1': a pair could not be verified: no result after 1.0 s of computing"
    assert f'reward "math_accuracy" has {said}' in caplog.text and BOMB in caplog.text
    monkeypatch.setattr(maths, "CPU_SECONDS", 0.001)  # the last of this process, which ends with it
    solution = " + ".join(rf"\frac{{{i}}}{{x}}" for i in range(30))
    assert "no result after 0.001 s of computing: choose a simpler solution" in reward.check(solution, {})
