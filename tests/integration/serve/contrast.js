// The visible texts whose colour differs too little from what is behind them (WCAG 2.2, 1.4.3: 4.5 to 1, large text 3 to 1).
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const behind = (element) => {
    if (element === null) return rgba(matchMedia("(prefers-color-scheme: dark)").matches ? "black" : "white");
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : over(own, behind(element.parentElement));
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const faint = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const [lower, higher] = [luminance(over(rgba(style.color), ground)), luminance(ground)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const contrast = (higher + 0.05) / (lower + 0.05);
    if (contrast < needed) faint.push([texts.currentNode.data.trim().slice(0, 40), Number(contrast.toFixed(2))]);
  }
  return faint;
}
