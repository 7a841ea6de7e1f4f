"""Where in an answer or a worked solution its result is."""

import pytest


@pytest.mark.parametrize(
    ("solution", "right", "wrong"),
    [
        # what "the answer is" says, in either of the two
        ("48/2=24.\n#### 72\nThe answer is: 72", ["72", r"\boxed{72}", "The answer is 72.", "#### 72"], ["24", "7272"]),
        ("So 48+24=72 clips.\nThe answer is: 72", ["72"], ["24"]),
        ("Rationale: it is left.\nAnswer: 72", ["72"], ["left"]),
        ("72", ["Step 1: 48/2 = 24 clips.\nStep 2: 48 + 24 = 72.\n\nTherefore, the answer is 72."], []),
        ("72", ["May: $48/2=24$\n\n**Answer:** 72", "Final answer: **72**", "The answer is:\n72"], ["Answer: 24\n72"]),
        ("72", ["答案是72", "答案为 $72$", "**答案：** 72", "答：72", "最终答案是：72", "故答案为：72"], ["答案是24"]),
        ("C", ["答案：C", "Option C", "The answer is C.", "The answer is option C"], ["Option B"]),
        ("5", ["The answer is 4. No, the answer is 5."], ["The answer is not 5"]),
        ("4", [], ["The answer is 4. No, the answer is 5."]),
        # a sentence
        ("10", ["The value of x is 10.", "The length of BC is 10 cm."], ["x is 10, y is 5"]),
        ("3", ["There are 3."], ["if x is 3"]),
        (r"\boxed{\frac{3}{8}}", [r"The probability is $\frac{3}{8}$."], [r"It is not $\frac{3}{8}$"]),
        ("2,3", [r"The roots are $\boxed{2}$ and $\boxed{3}$."], [r"\boxed{2}, but correct is \boxed{3}"]),
        ("7", ["So, $x = 7$.", "So 7"], ["So, $x = 8$."]),
        ("2, 3", ["The roots are 2 and 3."], ["The roots are 2 and 4."]),
        ("72", ["72\n\nExplanation: 48 + 24"], ["24\n\nExplanation: 48 + 24 = 72"]),
        # Markdown
        ("5", ["**$x_1 = 5$**", "**$S_{ABC} = 5$**", "***5***", "__5__"], ["**$x_1 = 6$**"]),
        (r"\log_2 3", [r"**$\log_2 3$**"], [r"**$\log_3 2$**"]),
        ("24", ["2*3*4"], ["234"]),
        # worked solutions without a word
        (r"$2x=24$, $x=\boxed{12}$.", ["12"], ["24"]),
        ("2x = 24\nx = 12\n\\boxed{12}", ["12"], ["24"]),
        ("\\[2x=24\\]\n\\[x=\\boxed{12}\\]", ["12"], ["24"]),
        (r"\begin{align*} x &= 3\cdot 4 \\ &= \boxed{12} \end{align*}", ["12"], ["3"]),
        ("∵ 2x=24 ∴ x=\\boxed{12}", ["12"], ["24"]),
        (r"$x+y=5$, $x-y=-1$, $(x,y)=\boxed{(2,3)}$", ["(2,3)"], ["(3,2)"]),
        (r"(2, \boxed{3})", ["(2,3)"], ["3"]),
        ("10", [r"Solution: a=3, b=4. \boxed{10}", r"For a=1, b=2: \boxed{10}"], [r"x = 1, \boxed{10}"]),
        (r"Solution: a=3, b=4. \boxed{10}", ["10"], ["4"]),
        # what is no statement of it
        ("10", ["10\n\nBecause it fits."], ["10\nis wrong", "10\n\nNo, it is 100.", "10\nOr 100", "10\nmillion"]),
        ("10", ["The value of x is 10"], ["The square of x is 10", "Twice the answer is 10", "Suppose x is 10"]),
        ("10", ["So the total cost is 10."], ["The error is 10", "Nothing is 10", "John says the answer is 10"]),
        (r"Hence we get $\boxed 9$.", ["9", r"\boxed 9"], ["8"]),
        # units behind a box in a sentence
        (r"The length is $\boxed{5}\text{ cm}$.", ["5 cm", "5"], ["5 m"]),
        (r"The length is $\boxed{5}\,\text{cm}$.", ["5 cm"], ["5 m"]),
        (r"The area is $\boxed{25\pi}\text{ cm}^2$.", [r"25\pi cm^2"], ["25 cm^2"]),
    ],
)
def test_the_result_is_found(assert_scores, solution, right, wrong):
    assert_scores(solution, right, wrong)
