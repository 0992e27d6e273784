"""What a browser is asked of a page: what of it cannot be read. Expressions of JavaScript."""

#: The texts of the page whose colour differs too little from what is behind them (WCAG 2.2, 1.4.3: 4.5 to 1).
LOW_CONTRAST = """(() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = parts(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const low = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "TITLE"].includes(element.tagName)) continue;
    if (element.closest("button, meter, svg")) continue;
    const both = [luminance(parts(getComputedStyle(element).color)), luminance(behind(element))].sort((a, b) => b - a);
    const ratio = (both[0] + 0.05) / (both[1] + 0.05);
    if (ratio < 4.5) low.push(ratio.toFixed(2) + " " + texts.currentNode.textContent);
  }
  return low;
})()"""

#: The words of the page that are on more than one line.
BROKEN_WORDS = """(() => {
  const broken = [], range = document.createRange();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (["SCRIPT", "STYLE", "TITLE"].includes(node.parentElement.tagName)) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+(?:,\\d{3})*/gu)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) broken.push(word[0] + " in " + node.data);
    }
  }
  return broken;
})()"""
