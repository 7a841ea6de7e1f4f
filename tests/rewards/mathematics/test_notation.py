"""Mathematics as people type it scores as its LaTeX does, and what looks alike does not."""

import pytest

from qwenvl.rewards.mathematics.notation import grouped, in_latex


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        # fractions in front of a factor
        (r"\frac{1}{2}x", ["½x", "½ x", "1/2 x", "(1/2)x", "x/2", "½·x"], ["1/(2x)", r"\frac{1}{2x}", "2x"]),
        (r"\frac{1}{2x}", ["1/(2x)", "1/2x"], ["½x", "1/2 x"]),
        (r"\frac{4}{3}\pi r^3", ["4/3 πr³", "⁴⁄₃πr³", "4πr³/3", "4/3 π r^3"], ["4/(3πr³)"]),
        (r"\frac{2}{3}x - 4", ["2/3 x - 4", "⅔x − 4"], ["2/(3x) - 4"]),
        (r"\frac{5x}{2}", ["2½x", "5/2 x"], ["5/(2x)", "2x/2"]),
        (r"\frac{n(n+1)}{2}", ["½n(n+1)", "1/2 n(n+1)", "(n²+n)/2"], ["n(n-1)/2"]),
        (r"\frac{1}{2}mv^2", ["½mv²", "1/2 mv^2", "mv²/2", "½ m v²"], ["mv²"]),
        (r"\frac{1}{2}gt^2", ["0.5 g t^2", "½gt²"], ["gt^2"]),
        ("2t^2g", ["2 g t^2"], ["2 g t"]),
        (r"\sqrt{\pi}", ["√π"], ["π"]),
        (r"\frac{1}{2}at^2", ["½at²", "at²/2"], ["at²"]),
        (r"\frac{\sqrt{2}}{2}", ["√2/2", "½√2", "√½", "1/√2"], ["√2"]),
        (r"\frac{9}{16}", ["¾²", "(3/4)²"], ["3/16"]),
        ("2", ["1/½", "4/2"], ["1/2"]),
        (r"\frac{\pi}{2}x", ["π/2 x", "πx/2"], [r"\frac{\pi}{2x}"]),
        (r"\frac{a+b}{2}h", ["(a+b)/2 h", "1/2(a+b)h", "½(a+b)h"], ["(a+b)/(2h)"]),
        (r"y=\frac{3}{4}x+1", ["y = 3/4x + 1", "y = ¾x + 1"], ["y = 3/(4x) + 1"]),
        (r"\frac{x}{2y}", ["x/2y", "x/(2y)"], ["x/2 y"]),
        ("3.5", ["x = 3 1/2", "x = 3½"], ["x = 31/2"]),
        # powers
        (r"2^{n+1}", ["2^(n+1)", "2·2^n"], ["2^n+1"]),
        (r"e^{-x}", ["e^-x", "e^(-x)", "1/e^x"], ["e^x"]),
        (r"x^{-1}", ["x⁻¹", "1/x", "x^-1"], ["x"]),
        (r"\sqrt{x}", ["√x", "x^(1/2)", "x^½", "sqrt(x)"], ["x/2"]),
        (r"x^{2/3}", ["x^(2/3)"], ["x^2/3"]),
        (r"6.02 \times 10^{23}", ["6.02×10²³", "6.02e23", "6.02 x 10^23", "6.02·10^23"], ["6.02×10²²"]),
        # roots
        (r"\sqrt{x+1}", ["√(x+1)", "sqrt(x + 1)", "(x+1)^(1/2)"], ["√x+1"]),
        (r"1+\sqrt{5}", ["1 + sqrt(5)", "√5 + 1", "1 + sqrt5"], ["√6"]),
        (r"\sqrt{(x-1)^2+4}", ["sqrt((x-1)^2 + 4)", "√((x−1)²+4)"], ["sqrt(x-1)"]),
        (r"\frac{s^2\sqrt{3}}{4}", ["(s²√3)/4", "s^2√3/4"], [r"\frac{s\sqrt{3}}{4}"]),
        (r"\sqrt[3]{8}", ["∛8", "³√8", "2"], ["8"]),
        (r"\sqrt[3]{x}", ["∛x", "cbrt(x)", "x^(1/3)"], ["√x"]),
        # functions
        (r"\frac{\sin x}{2}", ["sin x / 2", "½ sin x", "sin(x)/2"], ["sin(x/2)"]),
        (r"\frac{\ln 2}{3}", ["ln 2 / 3", "(ln 2)/3"], ["ln(2/3)"]),
        (r"\log_2 8", ["3", "log_2 8", "log₂8", "log₂(8)"], ["8"]),
        (r"\arcsin x", ["arcsin x", "arcsin(x)"], ["1/sin(x)"]),
        (r"\frac12", ["sin 30°", "cos(60°)", r"\sin 30^\circ"], ["sin 30"]),
        (r"\frac{2v_0\sin\theta}{g}", [r"2v_0\sin\theta/g", "2v_0 sin θ / g"], [r"2v_0\sin\theta g"]),
        (r"\frac{v_0^2\sin 2\theta}{g}", [r"v_0^2\sin2\theta/g", "v_0² sin 2θ / g"], [r"v_0^2\sin\theta/g"]),
        (r"\frac{\sin A}{\sin B}", [r"\sin A/\sin B"], [r"\sin B/\sin A"]),
        (r"\frac{\ln 2}{\lambda}", [r"\ln 2/\lambda"], [r"\ln 2 \lambda"]),
        (r"\frac{\ln x}{x}", ["ln x/x", r"\ln x/x", "ln(x)/x"], ["ln(x/x)"]),
        (r"\sin(x/2)", ["sin x/2", r"\sin\frac{x}{2}"], ["sin(x)/2", "sin x / 2"]),
        (r"x \sin x", [r"\sin x \cdot x", "sin x * x"], ["sin(x^2)"]),
        (r"mg\sin\theta", ["mgsinθ", "mgsin(θ)", "mg sin θ"], ["mgcosθ", "msinθ"]),
        (r"\frac\pi2", ["π/2", r"\frac{\pi}{2}"], ["2π"]),
        # fractions with brackets below, in front of a factor
        (r"\frac{M-m}{M+m}g", ["(M-m)/(M+m) g", "g(M-m)/(M+m)"], ["(M-m)/((M+m) g)"]),
        (r"\frac{R_2}{R_1+R_2}V", ["R_2/(R_1+R_2) V"], ["R_2/(R_1+R_2)"]),
        (r"\frac{1}{2\pi}\sqrt{\frac{k}{m}}", ["1/(2π) √(k/m)", r"1/(2\pi) \sqrt{k/m}"], ["1/(2π √(k/m))"]),
        (r"\frac{x^{n+1}}{n+1}+C", ["1/(n+1) x^(n+1) + C"], ["x^n + C"]),
        (r"\frac{1}{(n+1)^2}", ["1/(n+1)^2"], ["1/(n+1)"]),
        # numbers in brackets are factors
        (r"9\pi", [r"\pi(3)^2"], [r"\pi(3)"]),
        ("24", [r"\frac{1}{2}(6)(8)", "4(6)"], ["46"]),
        ("13", ["5(2)+3"], ["55"]),
        ("1.5", ["3(1/2)", r"2\left(\frac{3}{4}\right)"], ["3 1/2"]),
        ("24", ["2(3)(4)"], ["234"]),
        ("9", [], ["2(3)(4)"]),
        (r"\log_2 8", [r"\log_2(8)"], ["16"]),
        # complex numbers
        ("3+4i", ["3+4*i", "3 + 4·i", "4i + 3"], ["3-4i"]),
        ("5+5i", ["(1+2i)(3-i)", "5(1+i)"], ["5"]),
        ("-1", ["i^2"], ["1"]),
        # letters and signs
        (r"\theta", ["θ"], ["α"]),
        (r"\rho g h", ["ρgh", "ρ g h"], ["ρg"]),
        (r"x_1 + x_2", ["x₁ + x₂", "x_2+x_1"], ["x₁ + x₃"]),
        (r"x \geq 3", ["x ≥ 3", "x>=3", r"x \geqslant 3"], ["x > 3", "x ≤ 3"]),
        (r"x \le -1 \text{ or } x \ge 3", ["x ≤ -1 or x ≥ 3"], ["x ≤ -1 or x ≥ 4"]),
        (r"x \in (2,5)", ["x ∈ (2,5)", "(2,5)"], ["x ∈ [2,5]"]),
        (r"(-\infty, 2] \cup [3, \infty)", ["(−∞, 2] ∪ [3, ∞)"], ["(-∞, 2) ∪ [3, ∞)"]),
        (r"2 \pm \sqrt{3}", ["2 ± √3"], ["2 + √3"]),
        (r"\lfloor x \rfloor", ["⌊x⌋"], ["⌈x⌉"]),
        (r"\approx 3.14", ["≈ 3.14", "3.14"], ["3.15"]),
        (r"10\%", ["10%", "0.1", "10 percent"], ["1%"]),
        (r"45^\circ", ["45°", "45 degrees", "45 deg"], ["54°"]),
        ("1{,}234{,}567", ["1,234,567", "1 234 567"], ["1234"]),
        # units
        (r"3 \times 10^{8} \text{ m/s}", ["3×10⁸ m/s", "3e8 m/s", "3.0×10^8 m/s"], ["3×10^8 m", "3×10^7 m/s"]),
        (r"2.0 \times 10^5 \text{ N}", ["2.0×10^5 N", "200000 N"], ["2.0×10^5 J"]),
        (r"1.5 \text{ m}", [r"\frac{3}{2} m", "3/2 m", "1½ m"], ["1.5 s", "2.5", r"\frac{3}{2} s"]),
        (r"15\pi\,\text{cm}^2", ["15π cm²", "15π"], ["15π cm"]),
        (r"2\sqrt{3}\,\text{m}", ["√12 m", "2√3 m"], ["2√3 s"]),
        (r"12\,\mathrm{m^2}", ["12 m^2", "12.0 m²"], ["12 m"]),
        ("10000 m", ["10,000 m"], ["1000 m"]),
        ("5 m/s", [r"5\,\frac{\text{m}}{\text{s}}", "5 m s^{-1}", "v = 5 m/s", r"5\ m/s"], ["5 s/m", "v = 5 m"]),
        (r"5\ \text{kg}\cdot\text{m}^2", ["5 kg·m²", "5 kg m^2"], ["5 kg m"]),
        ("5 mm", ["5.0 MM", "5.0 mm"], ["5 mM"]),
        ("5 Pa", ["5.0 pa"], ["5 pA"]),
        ("5厘米", ["5.0厘米", "5"], ["5米"]),
        ("30度", ["30°"], ["31°"]),
        (r"33\frac{1}{3}\%", ["33⅓%"], ["33%"]),
        (r"\frac{3}{4}\text{ cup}", ["¾ cup", "0.75 cup"], ["¾ cups of"]),
        (r"5\ \mu m", ["5 μm", "5 µm"], ["5 mm"]),
        # pairs, which have an order, and lists
        ("x=2, y=-1", ["(2, −1)", "y=-1, x=2", "2, -1", "x=2 and y=-1"], ["(−1, 2)", "-1, 2", "x=-1, y=2"]),
        ("(2,-1)", ["x=2, y=-1", "2, -1", r"\left(2, -1\right)"], ["(-1,2)", "-1, 2", "x=-1, y=2"]),
        ("2, 3", ["3, 2", "2 or 3", "x=3 or x=2"], ["2", "(3, 2)"]),
    ],
)
def test_typed_mathematics_scores_as_its_latex_does(assert_scores, solution, right, wrong):
    assert_scores(solution, right, wrong)


def test_words_in_greek_stay_words():
    assert [in_latex(text) for text in ("ναι", "θ")] == ["ναι", r"\theta "]


def test_brackets_without_an_end_stay_as_they_are():
    assert in_latex("sqrt((x") == "sqrt((x"
    assert grouped("2^(n+1") == "2^(n+1"
