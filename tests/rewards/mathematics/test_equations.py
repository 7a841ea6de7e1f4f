"""What of equations, lists, pairs and worked solutions math_accuracy compares."""

import pytest

from qwenvl.rewards.mathematics.comparing import compare_as_text


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        # values of names
        ("12", ["x = 12", "10+2=12", "12 = x"], ["4x = 12", "x^2=12", "-x=12", "2x + y = 12"]),
        ("f(2)=3", ["3", "f(2) = 3"], ["f(5)=7", "f(5)=3", "f(2)=4", "1=2"]),
        (r"\log_2 8=3", ["3"], [r"\log_2 8=4"]),
        ("y=2x+1", ["2x+1", "y=1+2x", "2x + 1 = y"], ["y=2x-1", "x=2y+1"]),
        (r"A = \pi r^2 = 25\pi", ["25π", "A = 25π"], ["πr²"]),
        (r"x = \pi", ["π"], ["e"]),
        ("x=5", ["5"], ["y=5"]),
        ("m+n = 11", ["11", "n + m = 11"], ["m - n = 11"]),
        ("11", ["m + n = 11", "a+b+c = 11", "xy = 11"], ["m^2 + n = 11"]),
        ("|z|=3", ["3"], ["|w|=3"]),
        (r"F_{net} = ma", ["ma", "F_{net} = m·a"], ["F_{net} = m + a"]),
        (r"\frac{dP}{dt}=kP", ["dP/dt = kP"], ["dP/dt = -kP"]),
        ("x = 5 cm", ["5 cm"], ["5 m"]),
        (r"\vec{v} = (1,2)", ["(1,2)"], ["(2,1)"]),
        ("10", ["C_5^2 = 10", "C_{5}^{2} = 10"], ["C_5^2 = 11"]),
        # ranges, scores, dates
        ("20-30", ["20 - 30"], ["30-40", "-10"]),
        ("3-5 cm", ["3-5 cm"], ["4-6 cm"]),
        (r"10-20\%", ["10-20%"], ["20-30%"]),
        ("2024-01-05", ["2024-01-05"], ["2018"]),
        ("1/2/2024", ["1/2/2024"], ["2/4/2024"]),
        ("2", ["5-3"], ["2024-01-05"]),
        # chains in the other direction, and a quotient with a value
        ("a>b>c", ["c<b<a"], ["a>c>b"]),
        (r"\frac{1}{2}", ["F_1/F_2 = 1/2"], ["F_1/F_2 = 2"]),
        ("a/b = 2", ["b/a = 1/2", "2"], ["b/a = 2"]),
        # numbers of statements
        ("\u2460\u2463", ["\u2460\u2463", "(1)(4)"], ["\u2461\u2462", "\u2463", "4", "5"]),
        # equations
        ("x + y = 5", ["y = 5 - x", "5 = y + x", "5"], ["x - y = 5", "y = 5 + x"]),
        ("x = y + 1", ["y = x - 1"], ["y = x + 1"]),
        ("x^2+y^2=4", ["y²+x²=4", "x^2+y^2-4=0"], ["4", "x^2+y^2=5"]),
        # lists and pairs
        ("AB=3, BC=4", ["3, 4", "BC = 4, AB = 3", "(3, 4)"], ["4, 3", "3"]),
        ("α=3, β=4", [r"\alpha = 3, \beta = 4", "3, 4"], ["4, 3"]),
        (r"\lambda_1 = 2, \lambda_2=3", ["2, 3", "3, 2", "λ = 3, 2"], ["2", r"\lambda_1 = 3, \lambda_2=2"]),
        ("y = 3, x = 2", ["(2, 3)"], ["(3, 2)"]),
        ("p=3, a=1", ["(3, 1)", "a=1, p=3"], ["(1, 3)"]),
        ("100, 200", ["100,200", "200, 100"], ["100"]),
        ("x=5, 100", ["x=5,100"], ["x=5100"]),
        (r"x=2,\quad y=3", ["(2,3)", r"x=2,\text{ }y=3"], ["(3,2)"]),
        ("f^{-1}(x)=x/2", ["x/2"], ["x"]),
        ("(f+g)(x)=2x", ["2x"], ["x"]),
        ("E[X] = 5", ["5"], ["E[Y] = 5"]),
        (r"\sigma^2 = 5", ["5"], ["25"]),
        ("f(g(x)) = 4x+1", ["4x + 1"], ["4x"]),
        ("y' = 2x", ["2x"], ["x^2"]),
        (r"\sum_{k=1}^{5} k = 15", ["15"], ["16"]),
        (r"v_{\text{max}} + 1", [r"1 + v_{\text{max}}"], [r"v_{\text{max}}"]),
        (r"v_\text{max} = 5", ["5"], [r"v_\text{min} = 5"]),
        (r"\vec{v} = \langle 3,-2\rangle", ["(3,-2)", r"\langle 3, -2 \rangle"], ["(-2,3)"]),
        (r"11,\! 111,\! 100", ["11111100"], ["11"]),
        ("x=1,y=2 or x=2,y=1", ["x=1, y=2 or x=2, y=1"], ["x=1,y=1 or x=2,y=2"]),
        ("$x=1$, $y=2$, $x=2$, $y=1$", ["$x=1$, $y=2$, $x=2$, $y=1$"], ["$x=1$, $y=1$, $x=2$, $y=2$", "1, 2, 2, 1"]),
        ("x=1, 5, y=2", ["x=1, 5, y=2"], ["x=1, y=2", "1, 5, 2"]),
        ("x=2 or 3", ["3, 2", "x = 3, x = 2"], ["y = 3, y = 2", "2"]),
        ("(2,3)", ["2, 3"], [r"\{2,3\}", "3, 2", "[2,3]"]),
        ("1,234", ["1234"], ["1, 235"]),
        ("100,200", ["100, 200", "100200"], ["200"]),
        (r"\{100,200\}", ["{100,200}", "{200, 100}"], ["100200"]),
        ("x<2 or x>5", ["x < 2 or x > 5", r"x > 5 \text{ or } x < 2"], ["x<2 and x>5", "y<2 or y>5", "x<2"]),
        (r"(-\infty,-2]\cup[3,\infty)", [r"x \le -2 \text{ or } x \ge 3"], ["x < -2 or x > 3"]),
        ("x > 2 and x < 5", ["2<x<5", "(2,5)"], ["[2,5]"]),
        ("x>3或x<-1", ["x<-1或x>3"], ["x>1或x<-3"]),
        ("x > 3 and x < 1", ["x < 1 and x > 3"], ["x > 5 and x < 2"]),
        ("1<x<y", ["1 < x < y"], ["x<y"]),
        (r"\angle ABC = 30^\circ", ["30°", "∠ABC = 30°"], [r"\angle DEF = 30^\circ"]),
        ("area = 5", ["5", "Area = 5"], ["perimeter = 5"]),
        (r"\Delta = b^2-4ac", ["b^2-4ac"], ["b^2+4ac"]),
        (r"3 \pmod 5", [r"3\pmod{5}"], ["3"]),
        ("0.5", [r"\int^1_0 x dx", r"\int_0^1 x \, dx"], [r"\int_0^2 x dx"]),
        (r"(2,5]", ["2<x≤5"], ["2<x<5"]),
        ("x = 2; y = 3", ["x = 2, y = 3", "y = 3, x = 2", "(2, 3)"], ["x = 7; y = 3", "3"]),
        (r"x = 2 \\ y = 3", ["x=2, y=3", "x = 2\ny = 3"], [r"x = 5 \\ y = 3", "3"]),
        ("3", [r"2x = 6 \Rightarrow x = 3"], ["x=4\ny=3", r"x=4 \quad x=3"]),
        (r"x=1 \lor x=2", ["1, 2"], ["2"]),
        ("(2,3)", ["(x,y) = (2,3)", "(x, y) = (2, 3)"], ["(x,y) = (3,2)"]),
        ("(x, y) = (2, 3)", ["x = 2, y = 3", "(2,3)"], ["(3,2)", "y = 2, x = 3"]),
        ("(-1,100)", ["(-1, 100)"], ["(-1100)"]),
        (r"\frac{1,000}{3}", ["1000/3"], ["1/3"]),
        (r"58,\!500", ["58500", r"\boxed{58,\!500}", "58,500"], ["58"]),
        # Greek letters are letters
        (r"2\theta = 60^\circ", ["2θ = 60°"], [r"\theta = 60^\circ", "60°"]),
        (r"\theta = 60^\circ", ["60°", "θ = 60°"], [r"\alpha = 60^\circ"]),
        (r"\alpha + \beta = 90^\circ", [r"\beta + \alpha = 90^\circ"], [r"\alpha - \beta = 90^\circ"]),
        (r"\sin^2\theta = \frac{1}{4}", [r"\frac{1}{4} = \sin^2\theta"], [r"\sin\theta = \frac14"]),
        (r"\angle 1 = 50^\circ", ["50°"], [r"\angle 3 = 50^\circ"]),
        (r"\frac{dy}{dx} = 2x", ["dy/dx = 2x"], [r"\frac{dx}{dy} = 2x"]),
        ("f'(x)=3x^2", ["3x^2", "f'(x) = 3x²"], ["f(x)=3x^2"]),
        ("50%", [r"$\boxed{50}\%$"], [r"$\boxed{5}\%$"]),
        ("90°", [r"$\boxed{90}$ degrees.", r"90\degree"], [r"$\boxed{9}$ degrees."]),
        # names in words, and equations that are not solved
        ("Area = 6", ["6", "area = 6"], ["7"]),
        (r"\angle ABC = 30^\circ", ["30°", "30"], ["60°"]),
        (r"\sin A = \frac35", ["3/5"], ["4/5"]),
        ("3", ["n = 3"], [r"\sqrt{x} = 3", r"\ln x = 3", "x(x+1) = 3", r"\boxed{3} is not right", r"not \boxed{3}"]),
        # intervals are no lists of their ends
        ("-2<x<3", ["(-2,3)", r"x \in (-2,3)"], ["x = -2 or x = 3", "-2, 3", r"\{-2,3\}", "-2 ≤ x ≤ 3"]),
        ("-2<x<2", ["(-2, 2)"], [r"\pm 2"]),
        ("(-2,3)", ["-2 < x < 3"], ["x = -2 or x = 3"]),
        # several expressions
        (r"1 \pm i", ["1+i and 1-i", "1 - i, 1 + i"], ["1 + i"]),
        (r"\pi, 2\pi", ["π or 2π", r"2\pi \text{ and }\pi"], ["π"]),
        (r"30^\circ \text{ or } 150^\circ", ["30°, 150°", "150 degrees and 30 degrees"], ["30°"]),
        ("x=2,y=3", [r"x=2\text{ and }y=3", r"\begin{cases} x=2 \\ y=3 \end{cases}"], ["x=3,y=2"]),
        (r"90\text{ degrees}", ["90°", "90"], ["9°"]),
        (r"50\text{ percent}", ["50%"], ["5%"]),
        # what math-verify leaves out or cannot tell
        (r"1, 2, \ldots, n", [r"1, 2, \ldots, n"], ["1, 2, n"]),
        (r"3 \mod 7", [r"3 \mod 7"], ["3"]),
        (r"6.6 \times 10^{-34}", ["6.6×10⁻³⁴", "6.6e-34"], ["1.6×10^-19"]),
        (r"\frac{1}{10^{20}}", ["10^{-20}"], [r"\frac{2}{10^{20}}"]),
        (r"\frac{-1\pm\sqrt5}{2}", ["(-1 ± √5)/2", "x = (-1 ± √5)/2"], ["(-1 + √5)/2"]),
        # signs that are units
        ("50%", ["50 percent", "0.5"], ["50 degrees", "$50"]),
        ("£75", ["£75", "75"], ["$75", "£57"]),
        # products
        (r"\frac{GMm}{r^2}", ["GMm/r^2"], ["GMm/r"]),
        (r"\frac{kq_1q_2}{r^2}", ["kq_1q_2/r^2"], ["kq_1/r^2"]),
        (r"mg\sin\theta", ["mg sin θ"], ["mg cos θ"]),
        ("abc", ["a*b*c"], ["a*b*d"]),
        # worked solutions
        (r"Hence there are $\boxed{12}$ ways.", ["12", r"$\boxed{12}$ is the answer"], ["13"]),
        (r"It is $\boxed{5}$ m.", ["5 m"], ["5 s"]),
        (r"So $x=\boxed{12}$ and $y=\boxed{13}$", ["12, 13", "y=13, x=12"], ["13, 12", "13"]),
        ("12", ["Answer: 12", "The answer is **12**.", "x = **12**", "__12__"], [r"\boxed{12}, 13"]),
    ],
)
def test_values_are_compared_and_not_what_surrounds_them(assert_scores, solution, right, wrong):
    assert_scores(solution, right, wrong)


@pytest.mark.parametrize("text", ["5" + r"\text{m}   " * 40 + "x", "5 " + "min " * 60 + "!", "sec an^{2} m " * 25])
def test_units_of_many_words_take_no_long_time(text):
    assert compare_as_text("5", text) is not True
    assert compare_as_text(text, "5") is not True
