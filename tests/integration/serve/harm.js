// What the page shows that could run a script, fetch something, leave the page or look like something else.
() => {
  const all = [...document.body.querySelectorAll("*")];
  const elements = "script, img, image, iframe, object, embed, video, audio, link, style, meta, base, math, template, use,"
    + " animate, set, foreignObject";
  const links = all.filter((one) => one.localName === "a" && one.hasAttribute("href"));
  const isOwn = (link) => link.getAttribute("href").startsWith("#") && !link.closest(".markdown");
  const isSafe = (link) => ["http:", "https:", "mailto:"].includes(link.protocol)
    && link.target === "_blank" && link.rel === "noopener noreferrer";
  const isHarmful = (attribute) => /^(on.*|style|src|srcset|srcdoc|action|formaction|background|poster|data|ping|xlink:href|http-equiv|is)$/
    .test(attribute.name);
  const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/u;
  return [
    ...Array(window.hits).fill("a script ran"),
    ...all.filter((one) => one.matches(elements)).map((one) => one.outerHTML),
    ...all.flatMap((one) => [...one.attributes]).filter(isHarmful).map((one) => `${one.name}=${one.value}`),
    ...[...document.querySelectorAll(".markdown :is([id], [name], [class]:not(.aside-scroll), form, input, button)")].map((one) => one.outerHTML),
    ...links.filter((link) => !isOwn(link) && !isSafe(link)).map((link) => link.outerHTML),
    ...(hidden.test(document.body.textContent) ? ["a hidden character"] : []),
  ];
}
